"""`scalewise.profile`: seconds of one device per batch, divided among the phases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import scalewise
from scalewise.core.errors import UserError
from scalewise.formats.profile import StepCost
from scalewise.launch.existing_processes import LocalWorker
from scalewise.predict.memory import profile_footprint
from scalewise.probe import profile
from scalewise.probe import profile as verb
from scalewise.probe.profile import Profiler
from scalewise.training.results import Outcome, Request
from tests import tiny

TINY = "tests.tiny:float32"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewise.probe.profile.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List of the batches timed on a device that takes one second per sample."""
    timed: list[int] = []
    real = Profiler.cost

    def cost(self: Profiler, size: int, *, roughly: bool = False) -> tuple[StepCost, Outcome]:
        timed.append(size)
        return StepCost(batch=size, forward=size, backward=0, update=0, load=0), real(self, size, roughly=roughly)[1]

    monkeypatch.setattr(Profiler, "cost", cost)
    return timed


@pytest.mark.parametrize("seconds", [None, 5.0])
def test_steps_of_zero_seconds_are_accepted(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    monkeypatch.setattr("scalewise.runtime.clock.perf_counter", lambda: 1.0)
    result = scalewise.profile(tiny.float32(), batch=[2, 16], device_kind="cpu", seconds=seconds)
    assert [(step.batch, step.seconds) for step in result.document.steps] == [(2, 0.0), (16, 0.0)]
    assert "float32 on one device" in str(result)


def test_phases_of_the_first_steps_are_used_if_a_run_times_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real = profile._time

    def untimed(worker: LocalWorker, request: Request) -> Outcome:
        outcome = real(worker, request)
        if request.settings.steps != profile.FIRST_STEPS:
            outcome.phases = {}
        return outcome

    monkeypatch.setattr(profile, "_time", untimed)
    [step] = scalewise.profile(tiny.float32(), batch=[2], device_kind="cpu").document.steps
    assert step.step_seconds is not None
    assert step.seconds == pytest.approx(step.step_seconds)


def test_parts_sum_to_the_step_at_every_batch() -> None:
    reported: list[StepCost] = []
    result = scalewise.profile(tiny.float32(), batch=[2, 16], device_kind="cpu", on_batch=reported.append)
    document = result.document
    assert list(document.steps) == reported
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


def test_the_footprint_lists_tensors_in_the_order_their_gradients_become_ready() -> None:
    document = scalewise.profile(tiny.float32(), batch=[4], device_kind="cpu").document
    footprint = profile_footprint(document)
    assert sorted(footprint.parameter_bytes) == [12, 20, 60, 120]
    assert {footprint.parameter_bytes[:2], footprint.parameter_bytes[2:]} <= {(12, 60), (60, 12), (20, 120), (120, 20)}
    assert footprint.ready == document.steps[0].ready
    assert list(footprint.ready) == sorted(footprint.ready)
    assert (len(footprint.ready), footprint.ready[-1]) == (4, 1.0)


def test_empty_and_negative_batches_are_refused() -> None:
    with pytest.raises(scalewise.UserError, match="--batch is empty"):
        scalewise.profile(tiny.float32(), batch=[])
    with pytest.raises(scalewise.UserError, match=r"--batch is \[-1\]; it must be whole numbers from 1"):
        scalewise.profile(tiny.float32(), batch=[-1])


def test_cached_batches_are_not_timed_again(tmp_path: Path) -> None:
    first = scalewise.profile(TINY, batch=[4], device_kind="cpu").document
    timed: list[StepCost] = []
    again = scalewise.profile(TINY, batch=[4], device_kind="cpu", cached=True, on_batch=timed.append)
    assert (again.document, timed) == (first, [])
    assert again.note.startswith(f"cached since {first.measured_at} in {tmp_path}")
    more = scalewise.profile(TINY, batch=[4, 8], device_kind="cpu", cached=True, on_batch=timed.append)
    assert ([step.batch for step in timed], more.note) == ([8], "")
    assert more.document.steps[0] == first.steps[0]


def test_another_precision_or_a_damaged_cache_file_is_profiled_again(tmp_path: Path) -> None:
    scalewise.profile(TINY, batch=[4], device_kind="cpu")
    timed: list[StepCost] = []
    scalewise.profile(TINY, batch=[4], device_kind="cpu", precision="bf16", cached=True, on_batch=timed.append)
    assert len(timed) == 1
    for path in tmp_path.rglob("profiles/*.json"):
        path.write_text('{"workload": ')
    scalewise.profile(TINY, batch=[4], device_kind="cpu", cached=True, on_batch=timed.append)
    assert len(timed) == 2


def test_all_batches_that_fit_the_time_limit_are_timed(slow: list[int]) -> None:
    document = scalewise.profile(tiny.float32(), batch=[4, 8], device_kind="cpu", seconds=1000).document
    assert slow == [2, 4, 8]  # the first only serves to estimate the others
    assert [step.batch for step in document.steps] == [4, 8]


def test_batches_beyond_the_time_limit_are_left_out(slow: list[int]) -> None:
    document = scalewise.profile(tiny.float32(), batch=[4, 16], device_kind="cpu", seconds=30).document
    assert slow == [2, 4]
    assert [step.batch for step in document.steps] == [2, 4]


def test_if_no_batch_fits_the_time_limit_the_largest_that_does_is_timed(slow: list[int]) -> None:
    document = scalewise.profile(tiny.float32(), batch=[12, 16], device_kind="cpu", seconds=40).document
    assert slow == [2, 8]
    assert [step.batch for step in document.steps] == [2, 8]


def test_a_cached_profile_is_not_extended_by_batches_beyond_the_time_limit(slow: list[int]) -> None:
    arguments = {"batch": [12, 16], "device_kind": "cpu", "seconds": 40.0}
    scalewise.profile(TINY, **arguments)  # type: ignore[arg-type]
    slow.clear()
    assert verb.profile(TINY, cached=True, **arguments).note.startswith("cached since")  # type: ignore[arg-type]
    assert slow == []


def test_cached_batches_count_towards_the_time_limit(slow: list[int]) -> None:
    scalewise.profile(TINY, batch=[4, 6], device_kind="cpu", seconds=20)
    assert slow == [2, 4]
    slow.clear()
    again = verb.profile(TINY, cached=True, batch=[4, 6], device_kind="cpu", seconds=30)
    assert (again.note[:12], slow) == ("cached since", [])


@pytest.mark.usefixtures("slow")
def test_batches_larger_than_the_data_are_left_out_with_a_time_limit() -> None:
    document = scalewise.profile(tiny.float32(), batch=[8, 64], device_kind="cpu", seconds=1000).document
    assert [step.batch for step in document.steps] == [8]


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="has a GPU to cut")
def test_a_slice_is_refused_without_a_gpu_or_as_a_workload_object() -> None:
    with pytest.raises(UserError, match="slices need a CUDA device and this machine has none"):
        scalewise.profile(TINY, batch=[2], device_kind="slice", slice_percent=25)
    with pytest.raises(UserError, match="--slice-percent has no effect with --device-kind cpu"):
        scalewise.profile(TINY, batch=[2], device_kind="cpu", slice_percent=25)
    with pytest.raises(UserError, match="a slice runs in its own process; name 'float32'"):
        scalewise.profile(tiny.float32(), batch=[2], device_kind="slice")


@pytest.mark.skipif(torch.cuda.device_count() == 0 or shutil.which("nvidia-cuda-mps-control") is None, reason="no MPS")
def test_a_slice_is_profiled_with_its_share_of_the_gpu() -> None:
    timed: list[StepCost] = []
    document = scalewise.profile(
        TINY, batch=[2, 4], device_kind="slice", slice_percent=25, execution="eager", on_batch=timed.append
    ).document
    assert document.device == f"25 % of {torch.cuda.get_device_name(0)}"
    assert [step.batch for step in document.steps] == [step.batch for step in timed] == [2, 4]
