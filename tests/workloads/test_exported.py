"""Models that are cut by torch.export."""

from __future__ import annotations

import pytest

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.chain import example_of
from scalewise.workloads.exported import exported_chain
from scalewise.workloads.resolve import resolve


def test_a_place_that_there_is_not_is_answered_with_those_there_are_and_what_they_are() -> None:
    workload = resolve("transformer:layers=2,width=16,context=8")
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as answer:
        exported_chain(workload, workload.model(), inputs, ["blocks.9"])
    assert str(answer.value) == (
        "unknown module to cut at 'blocks.9'; valid: 0 (Embedding), 1 (Block), 2 (Block), 3 (LayerNorm), 4 (Linear)"
    )
