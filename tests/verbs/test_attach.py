"""Where the steps of somebody's own DDP script go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import scalewise
from scalewise.collectives import sends, sent_bytes
from tests.conftest import SessionOf
from tests.verbs.attach_task import EVALUATION_SECONDS, watched, watched_between_evaluations

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


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (0, "scalewise: no whole training step was seen yet"),
        (1, "scalewise: 1 training step seen, and the first 5 are warm-up: none was timed yet"),
        (5, "scalewise: 5 training steps seen, and the first 5 are warm-up: none was timed yet"),
    ],
)
def test_a_script_of_few_steps_is_told_why_there_is_nothing_to_see(
    steps: int, said: str, session_of: SessionOf
) -> None:
    document, text = session_of(2).run(watched, steps, 1)[0]
    assert (document["steps"], text.split()) == (steps, said.split())


def test_evaluations_and_a_step_without_an_update_are_no_steps(session_of: SessionOf) -> None:
    document, seconds = session_of(2).run(watched_between_evaluations, 2, 6)[0]
    assert document["steps"] == len(seconds) == 12
    assert document["step_seconds"]["n"] == 7
    assert max(seconds) < EVALUATION_SECONDS


def test_only_a_ddp_model_can_be_watched() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(scalewise.UserError, match="attach watches a DistributedDataParallel model, got Linear"):
        scalewise.attach(model, torch.optim.SGD(model.parameters()))  # type: ignore[arg-type]
