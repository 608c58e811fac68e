"""Waiting of asynchronous workers with bounded staleness."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from scalewise.parameter_server.server import Push, Slot
from scalewise.predict.predictor import BOUNDED_ROUNDS, BOUNDED_SETTLED, waits_of


def test_equal_workers_do_not_wait() -> None:
    assert waits_of([1.0] * 4, 1) == pytest.approx([0.0] * 4)


def test_fast_workers_wait_and_the_slowest_does_not() -> None:
    """Every 8 s, with a bound of 1, the fastest worker pushes at 1 s, and at 2 s with another; then both wait."""
    assert waits_of([1.0, 2.0, 8.0], 1) == pytest.approx([(0 + 6) / 2, 6.0, 0.0])


def test_a_bound_that_no_worker_reaches_causes_no_waiting() -> None:
    assert waits_of([1.0, 4.0], 3) == pytest.approx([0.0, 0.0])
    assert waits_of([1.0, 4.0], 100) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_simulated_pushes_wait_as_on_a_server(bound: int) -> None:
    """Gives the simulated arrivals to a slot of a real server and compares the waiting times."""
    draw = random.Random(bound)
    cycles = [draw.uniform(1, 6) for _ in range(4)]
    weight = nn.Parameter(torch.zeros(1))
    slot = Slot([0], [weight], torch.optim.SGD([weight], 0.0), bound, holding=dict.fromkeys(range(4), 0))
    pushes, waited, rounds = dict(enumerate(cycles)), [0.0] * 4, [0] * 4
    slowest, slowest_rounds = cycles.index(max(cycles)), 0
    arrived: dict[int, float] = {}
    while slowest_rounds < BOUNDED_ROUNDS:
        worker = min(pushes, key=pushes.__getitem__)
        now = arrived[worker] = pushes.pop(worker)
        answered: list[int] = []

        def answer(_: Slot, places: list[int], to: list[int] = answered) -> None:
            to.extend(places)

        slot.arrive(worker, Push([torch.zeros(1)], 1), answer)
        counts = slowest_rounds >= BOUNDED_SETTLED
        slowest_rounds += slowest in answered
        for place in answered:
            pushes[place] = now + cycles[place]
            if counts:
                waited[place] += now - arrived[place]
                rounds[place] += 1
    assert sum(waited) > 0  # otherwise nothing is compared
    assert waits_of(cycles, bound) == pytest.approx([a / b for a, b in zip(waited, rounds, strict=True)])
