"""`scalewise tune` on one CPU core, with real processes."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

import scalewise
from scalewise.core.errors import UserError
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.forkserver import load_for_ranks
from scalewise.tuning import trials
from scalewise.tuning.result import TuneResult
from scalewise.tuning.tune import Progress
from tests.command import fork

MODEL = str(Path(__file__).with_name("model.py")) + ":net"
SHAPE = {"input_shape": "1x8x8", "classes": 3}

pytestmark = pytest.mark.slow


def global_state() -> dict[str, object]:
    """Return what a trial could change in this process and on this machine."""
    return {
        "threads": torch.get_num_threads(),
        "cores": allowed_cores(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "dtype": torch.get_default_dtype(),
        "random": torch.get_rng_state().tolist(),
        "children": sorted(
            child.name() for child in psutil.Process().children(recursive=True) if child.name().startswith("sw ")
        ),
        "folders": sorted(Path(tempfile.gettempdir()).glob("scalewise-tune-*")),
        "environment": dict(os.environ),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Use an empty cache folder, and hide the C++ compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("CXX", "no-such-compiler")
        patch.setattr(trials, "BLOCK_SECONDS", 0.02)
        patch.setattr(trials, "MOST_TRIALS", 3)
        yield patch


@pytest.fixture(scope="module")
def tuned(cache: pytest.MonkeyPatch) -> tuple[TuneResult, dict[str, object], dict[str, object]]:  # noqa: ARG001
    """Result of a tune, and the state of this process before and after."""
    load_for_ranks()
    before = global_state()
    result = scalewise.tune(MODEL, batch=4, batches=True, **SHAPE)  # type: ignore[arg-type]
    return result, before, global_state()


def test_every_option_that_applies_is_timed(tuned: tuple[TuneResult, object, object]) -> None:
    trials = {trial.options.label: trial for trial in tuned[0].trials}
    assert next(iter(trials)) == "eager"
    assert {"channels_last"} < set(trials)
    timed = [trial for trial in trials.values() if trial.skipped is None]
    assert len(timed) >= 3
    for trial in timed:
        assert 0 <= trial.step_seconds.low <= trial.step_seconds.median <= trial.step_seconds.high
        assert trial.samples_per_second == pytest.approx(4 / trial.step_seconds.median)
        baseline_seconds = tuned[0].baseline.step_seconds.median
        assert trial.speedup == pytest.approx(baseline_seconds / trial.step_seconds.median)


def test_a_machine_without_a_compiler_skips_compilation_with_the_reason(
    tuned: tuple[TuneResult, object, object],
) -> None:
    [compiled] = [trial for trial in tuned[0].trials if trial.options.compiles]
    assert compiled.skipped is not None
    assert "needs a C++ compiler, and this machine has no no-such-compiler" in compiled.skipped
    assert "\n" not in compiled.skipped


def test_deviations_are_those_of_rounding_also_with_dropout(tuned: tuple[TuneResult, object, object]) -> None:
    baseline, *others = [trial for trial in tuned[0].trials if trial.skipped is None]
    assert baseline.deviation is not None
    assert (baseline.deviation.loss, baseline.deviation.gradients) == (0.0, 0.0)
    assert 1e-9 < baseline.deviation.rounding < 1e-5
    for trial in others:
        assert trial.deviation is not None
        assert trial.exact == (trial.options.precision == "fp32")
        assert trial.same_mathematics == trial.exact


def test_the_roofline_and_the_batches_are_reported(tuned: tuple[TuneResult, object, object]) -> None:
    result = tuned[0]
    assert result.roofline is not None
    assert 0 < result.roofline.seconds < result.baseline.step_seconds.median
    assert result.batches is not None
    assert result.batches.trials[0].batch == 1
    assert result.batches.largest is not None
    assert result.batches.saturating is not None
    assert result.batches.largest >= result.batches.saturating


def test_no_trial_leaves_processes_files_or_settings_changed(
    tuned: tuple[TuneResult, dict[str, object], dict[str, object]],
) -> None:
    _, before, after = tuned
    assert after == before


def test_the_result_is_found_again_until_something_changes(
    tuned: tuple[TuneResult, object, object],
) -> None:
    states: list[Progress] = []
    again = scalewise.tune(MODEL, batch=4, on_progress=states.append, **SHAPE)  # type: ignore[arg-type]
    assert states == []
    assert again.trials == tuned[0].trials
    assert "--fresh measures again" in again.notes[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit": 0.0}, "--time-limit is 0"),
        ({"device_kind": "slice"}, "tune needs a whole device"),
        ({"batch": 0}, "--batch is 0"),
        ({"precision": "tf32", "device_kind": "cpu"}, "--precision tf32 needs a CUDA device"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        scalewise.tune("synthetic", fresh=True, **arguments)  # type: ignore[arg-type]


def test_ctrl_c_keeps_the_finished_trials(tmp_path: Path) -> None:
    process = fork(MODEL, module="tests.tuning.interrupted", env_more={"XDG_CACHE_HOME": str(tmp_path)})
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("1 "):  # the first trial is finished
            process.send_signal(signal.SIGINT)
            break
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    assert "Interrupted: 1 trials are finished" in output
    assert "interrupted; the finished trials are shown and saved in" in errors
    assert len(list(tmp_path.glob("scalewise/tuned/*/*.json"))) == 1
