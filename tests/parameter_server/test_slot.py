"""When a slot applies pushes and what its weights then are, tested without processes."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import nn

from scalewise.parameter_server.server import Push, Slot


def _slot(max_staleness: int | None, *places: int) -> Slot:
    weight = nn.Parameter(torch.zeros(1))
    slot = Slot([0], [weight], torch.optim.SGD([weight], lr=1.0), max_staleness)
    slot.holding = dict.fromkeys(places, 0)
    return slot


def _arrive(slot: Slot, place: int, gradient: float, samples: int = 1) -> list[int]:
    """Push a gradient and return the workers whose pushes are answered."""
    answered: list[int] = []
    slot.arrive(place, Push([torch.tensor([gradient])], samples), lambda _, places: answered.extend(places))
    return answered


def test_a_synchronous_slot_waits_for_all_pushes_and_sums_them() -> None:
    slot = _slot(0, 0, 1, 2)
    assert [_arrive(slot, 0, 1.0), _arrive(slot, 2, 2.0), _arrive(slot, 1, 4.0)] == [[], [], [0, 1, 2]]
    assert slot.weights[0].item() == -7.0
    assert (slot.version, dict(slot.staleness)) == (1, {0: 3})


def test_a_sum_does_not_depend_on_the_positions_that_workers_have_taken() -> None:
    gradients = [1.0, 2.0**-24, 2.0**-24]  # in fp32 the sum of the last two changes the first, each alone does not
    sums = set()
    for positions in permutations(range(3)):
        slot = _slot(0, 0, 1, 2)
        slot.worker_at = {position: worker for worker, position in enumerate(positions)}
        for worker, position in enumerate(positions):
            _arrive(slot, position, gradients[worker])
        sums.add(slot.weights[0].item())
    assert sums == {-1.0}


def test_an_asynchronous_slot_applies_pushes_as_they_arrive() -> None:
    slot = _slot(None, 0, 1, 2)
    assert [_arrive(slot, place, 1.0) for place in (0, 1, 2, 0)] == [[0], [1], [2], [0]]
    assert slot.version == 4
    assert dict(slot.staleness) == {0: 1, 1: 1, 2: 2}


def test_pushes_that_wait_for_the_staleness_bound_are_averaged_by_samples() -> None:
    slot = _slot(1, 0, 1, 2)
    assert _arrive(slot, 0, 1.0) == [0]  # the others are now one version behind
    assert _arrive(slot, 1, 8.0, samples=3) == []  # applying it would make worker 2 too stale
    assert _arrive(slot, 2, 4.0, samples=1) == [1, 2]
    assert slot.weights[0].item() == pytest.approx(-1.0 - (8.0 * 3 + 4.0) / 4)
    assert max(slot.staleness) == 1


def test_an_update_with_part_of_a_batch_scales_the_learning_rate() -> None:
    slot = _slot(None, 0, 1)
    slot.whole_batch = 8
    _arrive(slot, 0, 1.0, samples=6)
    assert slot.weights[0].item() == -0.75
    _arrive(slot, 1, 1.0, samples=2)
    assert slot.weights[0].item() == -1.0


def test_adaptive_optimizers_scale_the_learning_rate_by_the_square_root() -> None:
    weight = nn.Parameter(torch.zeros(1))
    slot = Slot([0], [weight], torch.optim.Adam([weight], lr=1.0), None, holding={0: 0}, whole_batch=4)
    _arrive(slot, 0, 7.0, samples=1)
    assert weight.item() == pytest.approx(-0.5)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_the_staleness_bound_holds_for_any_order_of_pushes(bound: int) -> None:
    slot = _slot(bound, *range(5))
    generator = torch.Generator().manual_seed(bound)
    free = set(range(5))
    for _ in range(500):
        place = sorted(free)[int(torch.randint(len(free), (1,), generator=generator))]
        free.discard(place)
        free.update(_arrive(slot, place, 0.0))
    assert max(slot.staleness) == bound
    assert sum(slot.staleness.values()) == 500 - (5 - len(free))


def test_a_dead_worker_is_not_awaited() -> None:
    slot = _slot(1, 0, 1, 2)
    _arrive(slot, 0, 1.0)
    assert _arrive(slot, 1, 1.0) == []
    answered: list[int] = []
    slot.drop(2, lambda _, places: answered.extend(places))
    assert answered == [1]
    assert slot.version == 2


def test_the_staleness_of_a_dead_workers_push_is_counted_correctly() -> None:
    slot = _slot(1, 0, 1, 2)
    assert _arrive(slot, 0, 1.0) == [0]
    assert _arrive(slot, 1, 1.0) == []  # waits for 2
    slot.drop(1, lambda *_: None)
    slot.drop(2, lambda *_: None)
    assert dict(slot.staleness) == {0: 1, 1: 1}
