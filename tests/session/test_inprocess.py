"""One rank in this very process."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from scalewise.session.failure import RankFailed
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement


def test_an_error_that_is_kept_keeps_nothing_that_the_run_held() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def fails(_: Any) -> None:
        activations = torch.ones(1000, requires_grad=True).exp()
        held.append(weakref.ref(activations))
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("in backward") from error

    with InProcess(Placement(1, "cpu")) as session, pytest.raises(RankFailed) as kept:
        session.run(fails)
    assert kept.value.kind == "oom"
    assert [each() for each in held] == [None]
