"""Search for the largest batch and the saturating one, on devices whose times and memory are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewise.core.training_options import ExecutionOptions, Settings
from scalewise.formats.tuned import plain_options
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import REFERENCE
from scalewise.training.results import Request
from scalewise.tuning import trials
from scalewise.tuning.result import BatchSearch, BatchTrial
from scalewise.tuning.trials import Trials, search_batches, without_compilation

MB = 2**20
SearchOf = Callable[..., tuple[BatchSearch, list[int]]]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> SearchOf:
    """Return a function that searches on a device with launch time, time and memory per sample, and a real limit."""

    def run(
        *,
        launch: float = 0.01,
        per_sample: float = 1e-3,
        fits: float = math.inf,
        limit: int = 100 * MB,
        batch: int = 16,
    ) -> tuple[BatchSearch, list[int]]:
        tried: list[int] = []

        def timed(_: Trials, __: ExecutionOptions, size: int) -> BatchTrial:
            tried.append(size)
            if size > fits:
                return BatchTrial(size, skipped="out of memory")
            return BatchTrial(size, launch + per_sample * size, 10 * MB + size * MB // 10)

        monkeypatch.setattr(trials, "_time", timed)
        request = Request("conv", REFERENCE, Settings(batch))
        runs = Trials(request, Placement(), math.inf, Path())
        return search_batches(runs, plain_options(), limit), tried

    return run


def test_the_batch_doubles_until_throughput_saturates_then_the_largest_by_memory_is_tried(search: SearchOf) -> None:
    result, tried = search(launch=0.01, per_sample=1e-3)
    assert tried[:4] == [2, 4, 8, 16]
    assert tried[-1] == result.largest == 848  # 95 % of 100 MB, less 10 MB, at 0.1 MB per sample
    assert result.ended == "by prediction, more than 848 do not fit in 0.105 GB"
    saturating = result.saturating
    assert saturating is not None
    assert 128 <= saturating <= 512
    rate = {trial.batch: trial.samples_per_second for trial in result.timed}
    assert rate[saturating] >= 0.95 * max(rate.values())


def test_no_batch_is_tried_that_does_not_fit_by_prediction(search: SearchOf) -> None:
    result, tried = search(launch=1.0, per_sample=0.0, limit=30 * MB)
    assert max(tried) * MB / 10 + 10 * MB <= 30 * MB
    assert result.largest == max(tried) == 184


def test_a_device_that_runs_out_of_memory_earlier_is_tried_with_less(search: SearchOf) -> None:
    result, tried = search(fits=700)
    assert (tried[-3:], result.largest) == ([848, 760, 632], 632)
    result, tried = search(launch=1.0, per_sample=0.0, fits=100, limit=10**4 * MB)
    assert (tried, result.largest) == ([2, 4, 8, 16, 32, 64, 128], 64)
    assert result.ended == "batch 128: out of memory"


def test_long_steps_end_the_search(search: SearchOf) -> None:
    result, tried = search(launch=0.0, per_sample=0.5)
    assert tried == [2, 4, 8]
    assert "a step of batch 16 would take 8 s" in result.ended or "adds less than 2%" in result.ended
    assert result.largest == 8


def test_compiled_options_are_searched_without_compilation() -> None:
    compiled = ExecutionOptions("compile", "max-autotune", "channels_last")
    assert without_compilation(compiled, cuda=False) == ExecutionOptions("eager", memory_format="channels_last")
    assert without_compilation(compiled, cuda=True) == ExecutionOptions("graph", memory_format="channels_last")
    assert without_compilation(plain_options(), cuda=True) == plain_options()
