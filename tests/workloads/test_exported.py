"""Models that are cut by torch.export."""

from __future__ import annotations

import inspect

import pytest

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.chain import example_of
from scalewise.workloads.exported import exported_chain
from scalewise.workloads.resolve import resolve
from tests.tiny_cut import Branches, undeclared


def test_a_place_that_there_is_not_is_answered_with_those_there_are_and_what_they_are() -> None:
    workload = resolve("transformer:layers=2,width=16,context=8")
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as answer:
        exported_chain(workload, workload.model(), inputs, ["blocks.9"])
    assert str(answer.value) == (
        "unknown module to cut at 'blocks.9'; valid: 0 (Embedding), 1 (Block), 2 (Block), 3 (LayerNorm), 4 (Linear)"
    )


def test_a_model_that_export_cannot_follow_is_answered_with_the_users_own_line_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    workload = undeclared()
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as answer:
        exported_chain(workload, workload.model(), inputs, [])
    lines, first = inspect.getsourcelines(Branches)
    at, line = next((first + at, line.strip()) for at, line in enumerate(lines) if "value.sum() > 0" in line)
    assert str(answer.value) == (
        f"'{workload.name}' cannot be cut into stages: torch.export stops at {inspect.getfile(Branches)}:{at} ({line}"
        "), "
        "where what is computed depends on the numbers in a tensor; write it as an nn.Sequential, or say its stages "
        "with Workload(stages=...): then it is cut between those, or where pipeline:cut=STAGE says"
    )
    assert capfd.readouterr() == ("", "")
