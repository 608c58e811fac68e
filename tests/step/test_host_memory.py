"""Memory that ranks share: seen by all, without a name, gone when nobody needs it."""

from __future__ import annotations

import pytest
import torch

from scalewise.errors import RunFailed
from scalewise.step.host_memory import shared_zeros
from tests.conftest import SessionOf
from tests.step.host_tasks import maps_left, shared_maps, write_in_turn


def test_all_ranks_see_what_each_writes_and_nothing_is_left(session_of: SessionOf) -> None:
    session = session_of(3)
    assert session.run(write_in_turn) == [([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], True)] * 3
    assert session.run(maps_left) == [0, 0, 0]


def test_alone_it_needs_no_others() -> None:
    tensor = shared_zeros((2, 3), torch.float32, 0, 1)
    tensor += 1
    assert tensor.sum() == 6
    row = tensor[1]
    del tensor
    assert row.sum() == 3  # a view keeps it
    del row
    assert shared_maps() == []


def test_nothing_takes_no_memory() -> None:
    assert shared_zeros((0, 5), torch.float32, 0, 1).shape == (0, 5)


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(RunFailed, match=r"central-storage needs 4000000\.00 GB more of host memory, [0-9.]+ are free"):
        shared_zeros((10**15,), torch.float32, 0, 1)
