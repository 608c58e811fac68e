"""Where the steps of somebody's own DDP script go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import scalewise
from scalewise.collectives import sends, sent_bytes
from tests.conftest import SessionOf
from tests.verbs.attach_task import watched

GRADIENT_BYTES = (300 * 300 + 300 + 300 * 10 + 10) * 4


def test_steps_are_told_apart_by_phase_and_their_bytes_counted(session_of: SessionOf) -> None:
    for rank, (document, text) in enumerate(session_of(2).run(watched, 20, 1)):
        assert (document["rank"], document["devices"], document["steps"]) == (rank, 2, 20)
        assert set(document["phases"]) == {"load", "forward", "loss", "backward", "reduce", "update"}
        assert document["step_seconds"]["n"] == 15
        assert document["gradient_bytes"] == GRADIENT_BYTES
        assert document["sent_bytes_per_step"] == pytest.approx(
            sent_bytes(sends("gloo", "all_reduce", 2, GRADIENT_BYTES), rank), rel=0.02
        )
        assert "waits for gradients" in text


def test_a_step_with_accumulated_gradients_is_one_step(session_of: SessionOf) -> None:
    document, _ = session_of(2).run(watched, 10, 3)[0]
    assert document["steps"] == 10
    assert sum(document["phases"].values()) == pytest.approx(document["step_seconds"]["median"])


def test_only_a_ddp_model_can_be_watched() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(scalewise.UserError, match="attach watches a DistributedDataParallel model, got Linear"):
        scalewise.attach(model, torch.optim.SGD(model.parameters()))  # type: ignore[arg-type]
