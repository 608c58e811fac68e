"""`scalewise.profile`: a device's seconds per batch, shared out over the phases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import scalewise
from scalewise.errors import UserError
from scalewise.prediction.footprint import footprint_of
from scalewise.results.profile import StepCost
from scalewise.training.outcome import Outcome
from scalewise.verbs import profile as verb
from scalewise.verbs.profiler import Profiler
from tests import tiny

TINY = "tests.tiny:float32"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewise.verbs.profiler.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device that takes a second a sample, and the batches that were timed on it."""
    timed: list[int] = []
    real = Profiler.cost

    def cost(self: Profiler, size: int, *, roughly: bool = False) -> tuple[StepCost, Outcome]:
        timed.append(size)
        return StepCost(batch=size, forward=size, backward=0, update=0, load=0), real(self, size, roughly=roughly)[1]

    monkeypatch.setattr(Profiler, "cost", cost)
    return timed


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


def test_plans_are_made_from_its_tensors_in_the_order_they_become_ready() -> None:
    document = scalewise.profile(tiny.float32(), batch=[4], device_kind="cpu").document
    footprint = footprint_of(document)
    assert sorted(footprint.parameter_bytes) == [12, 20, 60, 120]
    assert {footprint.parameter_bytes[:2], footprint.parameter_bytes[2:]} <= {(12, 60), (60, 12), (20, 120), (120, 20)}
    assert footprint.ready == document.steps[0].ready
    assert list(footprint.ready) == sorted(footprint.ready)
    assert (len(footprint.ready), footprint.ready[-1]) == (4, 1.0)


def test_no_batch_is_refused() -> None:
    with pytest.raises(scalewise.UserError, match="--batch is empty"):
        scalewise.profile(tiny.float32(), batch=[])
    with pytest.raises(scalewise.UserError, match="--batch is -1; it must be at least 1"):
        scalewise.profile(tiny.float32(), batch=[-1])


def test_what_was_timed_before_is_not_timed_again(tmp_path: Path) -> None:
    first = scalewise.profile(TINY, batch=[4], device_kind="cpu").document
    seen: list[StepCost] = []
    again = scalewise.profile(TINY, batch=[4], device_kind="cpu", cached=True, on_batch=seen.append)
    assert (again.document, seen) == (first, [])
    assert again.note.startswith(f"kept since {first.measured_at} in {tmp_path}")
    more = scalewise.profile(TINY, batch=[4, 8], device_kind="cpu", cached=True, on_batch=seen.append)
    assert ([step.batch for step in seen], more.note) == ([8], "")
    assert more.document.steps[0] == first.steps[0]


def test_another_precision_is_another_profile_and_a_spoilt_file_is_none(tmp_path: Path) -> None:
    scalewise.profile(TINY, batch=[4], device_kind="cpu")
    seen: list[StepCost] = []
    scalewise.profile(TINY, batch=[4], device_kind="cpu", precision="bf16", cached=True, on_batch=seen.append)
    assert len(seen) == 1
    for path in tmp_path.rglob("profiles/*.json"):
        path.write_text('{"workload": ')
    scalewise.profile(TINY, batch=[4], device_kind="cpu", cached=True, on_batch=seen.append)
    assert len(seen) == 2


def test_a_device_that_is_quick_enough_is_timed_at_all_batches(slow: list[int]) -> None:
    document = scalewise.profile(tiny.float32(), batch=[4, 8], device_kind="cpu", seconds=1000).document
    assert slow == [2, 4, 8]  # the first only tells how long the others take
    assert [step.batch for step in document.steps] == [4, 8]


def test_batches_that_take_too_long_are_left_out(slow: list[int]) -> None:
    document = scalewise.profile(tiny.float32(), batch=[4, 16], device_kind="cpu", seconds=30).document
    assert slow == [2, 4]
    assert [step.batch for step in document.steps] == [2, 4]


def test_where_all_take_too_long_the_largest_that_does_not_is_timed(slow: list[int]) -> None:
    document = scalewise.profile(tiny.float32(), batch=[12, 16], device_kind="cpu", seconds=40).document
    assert slow == [2, 8]
    assert [step.batch for step in document.steps] == [2, 8]


def test_what_could_not_be_afforded_is_not_tried_again(slow: list[int]) -> None:
    asked = {"batch": [12, 16], "device_kind": "cpu", "seconds": 40.0}
    scalewise.profile(TINY, **asked)  # type: ignore[arg-type]
    slow.clear()
    assert verb.profile(TINY, cached=True, **asked).note.startswith("kept since")  # type: ignore[arg-type]
    assert slow == []


def test_the_time_that_known_batches_took_counts(slow: list[int]) -> None:
    scalewise.profile(TINY, batch=[4, 6], device_kind="cpu", seconds=20)
    assert slow == [2, 4]
    slow.clear()
    again = verb.profile(TINY, cached=True, batch=[4, 6], device_kind="cpu", seconds=30)
    assert (again.note[:10], slow) == ("kept since", [])


@pytest.mark.usefixtures("slow")
def test_more_samples_than_there_are_are_left_out_within_a_time() -> None:
    document = scalewise.profile(tiny.float32(), batch=[8, 64], device_kind="cpu", seconds=1000).document
    assert [step.batch for step in document.steps] == [8]


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="has a GPU to cut")
def test_a_slice_is_never_profiled_on_something_else() -> None:
    with pytest.raises(UserError, match="slices need a CUDA device and this machine has none"):
        scalewise.profile(TINY, batch=[2], device_kind="slice", slice_percent=25)
    with pytest.raises(UserError, match="a slice percentage means nothing with --device-kind cpu"):
        scalewise.profile(TINY, batch=[2], device_kind="cpu", slice_percent=25)
    with pytest.raises(UserError, match="a slice has a process of its own; name 'float32'"):
        scalewise.profile(tiny.float32(), batch=[2], device_kind="slice")


@pytest.mark.skipif(torch.cuda.device_count() == 0 or shutil.which("nvidia-cuda-mps-control") is None, reason="no MPS")
def test_a_slice_is_profiled_with_its_share_of_the_gpu() -> None:
    seen: list[StepCost] = []
    document = scalewise.profile(
        TINY, batch=[2, 4], device_kind="slice", slice_percent=25, execution="eager", on_batch=seen.append
    ).document
    assert document.device == f"25 % of {torch.cuda.get_device_name(0)}"
    assert [step.batch for step in document.steps] == [step.batch for step in seen] == [2, 4]
