"""Workers that must not get too far ahead of each other."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from scalewise.servers.slot import Push, Slot
from scalewise.simulation.bounded import ROUNDS, SETTLED, waits_of


def test_equal_workers_wait_for_nobody() -> None:
    assert waits_of([1.0] * 4, 1) == pytest.approx([0.0] * 4)


def test_the_quick_wait_and_the_slowest_never_does() -> None:
    """Bounded by 1, every 8 seconds: the quickest pushes at 1, and at 2 with the other; they wait until 8."""
    assert waits_of([1.0, 2.0, 8.0], 1) == pytest.approx([(0 + 6) / 2, 6.0, 0.0])


def test_a_bound_that_nobody_comes_to_costs_nothing() -> None:
    assert waits_of([1.0, 4.0], 3) == pytest.approx([0.0, 0.0])
    assert waits_of([1.0, 4.0], 100) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_pushes_wait_as_they_do_on_a_server(bound: int) -> None:
    """The same arrivals, given to a slot of a real server."""
    draw = random.Random(bound)
    cycles = [draw.uniform(1, 6) for _ in range(4)]
    weight = nn.Parameter(torch.zeros(1))
    slot = Slot([0], [weight], torch.optim.SGD([weight], 0.0), bound, holding=dict.fromkeys(range(4), 0))
    coming, waited, rounds = dict(enumerate(cycles)), [0.0] * 4, [0] * 4
    slowest, seen = cycles.index(max(cycles)), 0
    arrived: dict[int, float] = {}
    while seen < ROUNDS:
        worker = min(coming, key=coming.__getitem__)
        now = arrived[worker] = coming.pop(worker)
        answered: list[int] = []

        def answer(_: Slot, places: list[int], to: list[int] = answered) -> None:
            to.extend(places)

        slot.arrive(worker, Push([torch.zeros(1)], 1), answer)
        counts = seen >= SETTLED
        seen += slowest in answered
        for each in answered:
            coming[each] = now + cycles[each]
            if counts:
                waited[each] += now - arrived[each]
                rounds[each] += 1
    assert sum(waited) > 0  # or nothing is compared
    assert waits_of(cycles, bound) == pytest.approx([a / b for a, b in zip(waited, rounds, strict=True)])
