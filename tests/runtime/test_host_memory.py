"""Tests of memory shared by ranks: visible to all, released when unused."""

from __future__ import annotations

import pytest
import torch

from scalewise.core.errors import RunFailed
from scalewise.engines.central_storage import shared_zeros
from tests.conftest import SessionOf
from tests.runtime.host_tasks import maps_left, shared_maps, write_in_turn


def test_all_ranks_see_all_writes_and_the_memory_is_released(session_of: SessionOf) -> None:
    session = session_of(3)
    assert session.run(write_in_turn) == [([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], True)] * 3
    assert session.run(maps_left) == [0, 0, 0]


def test_one_rank_needs_no_process_group() -> None:
    tensor = shared_zeros((2, 3), torch.float32, 0, 1)
    tensor += 1
    assert tensor.sum() == 6
    row = tensor[1]
    del tensor
    assert row.sum() == 3  # a view keeps the memory
    del row
    assert shared_maps() == []


def test_an_empty_tensor_is_possible() -> None:
    assert shared_zeros((0, 5), torch.float32, 0, 1).shape == (0, 5)


def test_more_memory_than_free_is_refused() -> None:
    with pytest.raises(
        RunFailed, match=r"central-storage needs 4000000\.00 GB of host memory, but only [0-9.]+ GB are free"
    ):
        shared_zeros((10**15,), torch.float32, 0, 1)
