"""`scalewise.attach` on a user's own DDP script."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import scalewise
from scalewise.hardware.collectives import sends, sent_bytes
from tests.conftest import SessionOf
from tests.training.attach_task import EVALUATION_SECONDS, watched, watched_between_evaluations

GRADIENT_BYTES = (300 * 300 + 300 + 300 * 10 + 10) * 4


def test_phases_and_sent_bytes_of_steps_are_reported(session_of: SessionOf) -> None:
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


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (0, "scalewise: no complete training step yet"),
        (1, "scalewise: 1 training step so far, none timed yet: the first 5 are warm-up"),
        (5, "scalewise: 5 training steps so far, none timed yet: the first 5 are warm-up"),
    ],
)
def test_a_script_with_warm_up_steps_only_prints_why_nothing_was_timed(
    steps: int, sentence: str, session_of: SessionOf
) -> None:
    document, text = session_of(2).run(watched, steps, 1)[0]
    assert (document["steps"], text.split()) == (steps, sentence.split())


@pytest.mark.serial
def test_evaluations_and_steps_without_an_update_are_not_counted(session_of: SessionOf) -> None:
    document, seconds = session_of(2).run(watched_between_evaluations, 2, 6)[0]
    assert document["steps"] == len(seconds) == 12
    assert document["step_seconds"]["n"] == 7
    assert max(seconds) < EVALUATION_SECONDS


def test_attach_refuses_a_model_without_ddp() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(scalewise.UserError, match="attach needs a DistributedDataParallel model, got Linear"):
        scalewise.attach(model, torch.optim.SGD(model.parameters()))  # type: ignore[arg-type]
