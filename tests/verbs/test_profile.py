"""`scalewise.profile`: a device's seconds per batch, shared out over the phases."""

from __future__ import annotations

import pytest

import scalewise
from scalewise.results.profile import StepCost
from tests import tiny


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewise.verbs.profile.SECONDS_PER_BATCH", 0.02)


def test_parts_sum_to_the_step_at_every_batch() -> None:
    seen: list[StepCost] = []
    result = scalewise.profile(tiny.float32(), batch=[2, 16], device_kind="cpu", on_batch=seen.append)
    document = result.document
    assert list(document.steps) == seen
    assert [step.batch for step in document.steps] == [2, 16]
    for step in document.steps:
        assert step.step_seconds is not None
        assert step.seconds == pytest.approx(step.step_seconds)
        assert min(step.forward, step.backward, step.update, step.load) > 0
    assert (document.workload, document.samples_per_epoch, document.execution) == ("float32", 16, "eager")
    assert document.parameter_bytes == 4 * 53
    assert document.device
    assert set(document.versions) == {"scalewise", "torch", "numpy", "python"}
    assert "float32 on one device" in str(result)
    assert "<pre>" in result._repr_html_()


def test_no_batch_is_refused() -> None:
    with pytest.raises(scalewise.UserError, match="--batch is empty"):
        scalewise.profile(tiny.float32(), batch=[])
    with pytest.raises(scalewise.UserError, match="--batch is -1; it must be at least 1"):
        scalewise.profile(tiny.float32(), batch=[-1])
