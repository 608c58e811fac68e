"""The survey's U-Net comparison, from runs to its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scalewise.core.errors import UserError
from scalewise.core.timeline import Span, Timeline
from scalewise.models.resolve import resolve
from scalewise.reporting.finding import ExperimentResult
from scalewise.runtime.device_memory import MEMORY_LIMIT, memory_limit_bytes
from scalewise.studies import unet
from scalewise.studies.unet import CPU, CPU_QUICK, GPU, GPU_QUICK, Setup, conclude, nearest_first
from scalewise.studies.unet_runs import (
    StrategyRun,
    SweepPoint,
    apart,
    as_first_device_sees,
    as_measured,
    comparison,
    headline,
    phases_by_rank,
    sweep_words,
)

ALONE = StrategyRun(10.0, 0.100, ({"forward": 0.040, "backward": 0.060},), 0, 36_000_000, 36_000_000)
DATA = StrategyRun(6.25, 0.0625, ({"forward": 0.020, "backward": 0.030, "reduce": 0.0125},) * 2, 1_000_000)
TURNS = StrategyRun(
    11.0,
    0.110,
    (
        {"forward": 0.020, "backward": 0.030, "send": 0.002, "idle": 0.058},
        {"receive": 0.003, "forward": 0.020, "backward": 0.030, "idle": 0.057},
    ),
    8_000_000,
)
PIPELINE = StrategyRun(7.0, 0.070, ({"forward": 0.022, "backward": 0.033, "idle": 0.015},) * 2, 8_000_000)


def with_a_step(run: StrategyRun) -> StrategyRun:
    spans: list[Span] = []
    for rank, phases in enumerate(run.ranks):
        start = 0.0
        for phase, seconds in phases.items():
            spans.append(Span(rank, phase, start, seconds))
            start += seconds
    return replace(run, step=tuple(spans))


RUNS = {
    name: with_a_step(run)
    for name, run in {"single": ALONE, "mirrored": DATA, "layers": TURNS, "pipeline": PIPELINE}.items()
}


def point(parameters: int, strategy: str, rate: float | None, planned_GB: float) -> SweepPoint:
    status = "ok" if rate else "oom"
    measured = round(planned_GB * 1e9) if rate else None
    return SweepPoint(
        f"unet:width={parameters}", parameters, strategy, rate, status, round(planned_GB * 1e9), measured, 0.4
    )


POINTS = [
    point(100_000, "single", 100.0, 0.01),
    point(100_000, "mirrored", 180.0, 0.01),
    point(100_000, "pipeline", 120.0, 0.01),
    point(8_000_000, "single", 10.0, 0.2),
    point(8_000_000, "mirrored", 12.0, 0.2),
    point(8_000_000, "pipeline", 15.0, 0.1),
    point(30_000_000, "single", None, 0.5),
    point(30_000_000, "mirrored", None, 0.6),
    point(30_000_000, "pipeline", 4.0, 0.3),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return conclude(tmp_path_factory.mktemp("unet"), CPU_QUICK, RUNS, POINTS, "a machine")


def test_speedups_are_compared_with_the_survey(result: ExperimentResult) -> None:
    assert result.headline == (
        "Found on a machine: two devices train the U-Net 1.60x data parallel, 0.91x model parallel, 1.43x as a "
        "pipeline; the survey has 1.30x data parallel and 1.04x model parallel"
    )
    assert result.rows[1][:4] == ["mirrored", "18.976 s, 1.30x", "6.25 s, 1.60x", "80% / 80%"]
    assert result.rows[3][1:3] == ["-", "7 s, 1.43x"]


def test_headline_without_runs_on_two_devices() -> None:
    assert headline("a machine", {"single": ALONE}) == (
        "Found on a machine: no run on two devices succeeded; the survey has 1.30x data parallel and 1.04x model "
        "parallel"
    )


def test_every_difference_is_explained_in_numbers() -> None:
    single, data, turns, pipeline = comparison(RUNS)
    assert single.startswith("One device: 10 s per epoch; the survey has 24.76 s")
    assert "Each device computes 50% as long as one device alone" in data
    assert "20% of the step (mean of both devices) goes to exchanging 976.6 KiB of gradients" in data
    assert "they spent 35% of the step on this, more than here" in data
    assert "they compute 45% and 45% of the step" in turns
    assert "Together they compute for 100 ms of the 110 ms of a step" in turns
    assert "the survey's 4% must have another cause" in turns
    assert "1.43x, 1.57x as fast as model parallel" in pipeline


def test_sentences_about_memory_and_the_fastest_strategy() -> None:
    sentences = sweep_words(POINTS, 0.4)
    assert (
        "Data parallel fits in 0.4 GB per device up to 8 M parameters; with 30 M (planned: 0.60 GB) it runs out of "
        "memory."
    ) in sentences
    assert "Pipeline fits in 0.4 GB per device with all models measured, up to 30 M parameters." in sentences
    assert sentences[-1] == (
        "From 8 M parameters on, pipeline is the fastest that runs: it is 1.25x as fast as data parallelism, which "
        "spends 40% of its step on exchanging gradients."
    )


def test_a_model_that_fits_only_with_model_parallelism() -> None:
    sentences = sweep_words([point for point in POINTS if point.parameters != 8_000_000], 0.4)
    assert sentences[-1] == (
        "With 30 M parameters, the largest model compared, pipeline is the fastest that runs: data parallelism runs "
        "out of memory."
    )


@pytest.mark.parametrize("status", ["not begun", "failed"])
def test_models_without_a_data_parallel_result_are_not_compared(status: str) -> None:
    points = [replace(point, status=status) if not point.samples_per_second else point for point in POINTS]
    assert sweep_words(points, 0.4)[-1] == (
        "With 8 M parameters, the largest model compared, pipeline is the fastest that runs: it is 1.25x as fast as "
        "data parallelism, which spends 40% of its step on exchanging gradients."
    )


def test_data_parallelism_may_be_the_fastest_again_with_larger_models() -> None:
    again = [*POINTS[:6], point(30_000_000, "mirrored", 9.0, 0.3), point(30_000_000, "pipeline", 4.0, 0.3)]
    assert sweep_words(again, 0.4)[-1] == (
        "With 8 M parameters, pipeline is the fastest that runs: it is 1.25x as fast as data parallelism, which spends "
        "40% of its step on exchanging gradients; with 30 M parameters data parallel is the fastest again."
    )


def test_a_strategy_that_only_ran_out_of_memory_is_reported() -> None:
    sentences = sweep_words([*POINTS, point(8_000_000, "sharded", None, 0.5)], 0.4)
    assert (
        "Sharded does not fit in 0.4 GB per device with any model tried; with 8 M parameters it runs out of memory."
        in sentences
    )


def test_gains_of_model_parallelism_are_explained() -> None:
    quick = StrategyRun(8.0, 0.080, ({"forward": 0.020, "backward": 0.020, "idle": 0.040},) * 2, 8_000_000)
    assert (
        "halves of the model that compute faster than the whole, in 80% of one device's time"
        in comparison({**RUNS, "layers": quick})[2]
    )
    assert "the survey's 4% may have the same cause" in comparison({**RUNS, "layers": quick})[2]
    unlike = StrategyRun(8.0, 0.080, ({"forward": 0.020, "backward": 0.030, "idle": 0.030},) * 2, 8_000_000)
    assert (
        "does not come from computing either, because both halves take 100%"
        in comparison({**RUNS, "layers": unlike})[2]
    )


def test_phases_of_ranks_are_averaged_over_the_faster_half_of_the_steps() -> None:
    steps = [(0, 2.0), (1, 4.0), (2, 9.0), (3, 90.0)]
    spans = [Span(0, "forward", 100.0 * step, seconds, step=step) for step, seconds in steps]
    spans += [Span(1, "idle", 100.0 * step, 1.0, step=step) for step, _ in steps]
    assert phases_by_rank(Timeline(tuple(spans)), 2) == ({"forward": 3.0}, {"idle": 1.0})


def test_recorded_phases_are_scaled_to_the_measured_step() -> None:
    spans = (Span(0, "forward", 0.0, 0.1), Span(1, "idle", 0.05, 0.15))
    run = as_measured(StrategyRun(10.0, 0.1, ({"forward": 0.15, "reduce": 0.05}, {"idle": 0.1}), 0, step=spans))
    assert [pytest.approx(phases) for phases in run.ranks] == [{"forward": 0.075, "reduce": 0.025}, {"idle": 0.05}]
    # The second device takes 150 ms, the longest; its later start does not count.
    assert [pytest.approx((span.start, span.seconds)) for span in run.step] == [(0.0, 0.2 / 3), (0.1 / 3, 0.1)]
    [remark] = apart({"mirrored": run, "single": as_measured(RUNS["single"])})
    assert remark.startswith("A step of data parallel took 200 ms in the run that recorded its phases but 100 ms when")


def test_work_before_the_start_of_the_first_device_is_drawn_at_the_end() -> None:
    """The second device starts 3 s before the first and waits for 5 s."""
    step = [
        Span(0, "forward", 3.0, 2.0),
        Span(0, "idle", 5.0, 3.0),
        Span(0, "backward", 8.0, 2.0),
        Span(1, "idle", 0.0, 5.0),
        Span(1, "forward", 5.0, 2.0),
    ]
    assert [(span.rank, span.phase, span.start, span.seconds) for span in as_first_device_sees(step)] == [
        (0, "forward", 0.0, 2.0),
        (0, "idle", 2.0, 3.0),
        (0, "backward", 5.0, 2.0),
        (1, "idle", 4.0, 3.0),  # it continues as soon as it has finished
        (1, "idle", 0.0, 2.0),
        (1, "forward", 2.0, 2.0),
    ]
    behind = [Span(0, "forward", 0.0, 4.0), Span(1, "idle", 1.0, 1.0), Span(1, "forward", 2.0, 3.0)]
    assert [(span.start, span.seconds) for span in as_first_device_sees(behind)[1:]] == [
        (1.0, 1.0),
        (2.0, 2.0),
        (0.0, 1.0),
    ]


def test_the_computing_share_of_the_drawn_step() -> None:
    shown = (Span(0, "forward", 0.0, 1.0), Span(0, "idle", 1.0, 3.0), Span(1, "forward", 0.0, 4.0))
    run = StrategyRun(10.0, 4.0, ({"forward": 2.0, "idle": 2.0}, {"forward": 4.0}), 0, step=shown)
    assert [run.computing_shown(rank) for rank in (0, 1)] == [0.25, 1.0]


def test_the_page_shows_its_figures_and_the_numbers_are_saved(result: ExperimentResult) -> None:
    folder = result.files[0].parent
    page = (folder / "findings.md").read_text()
    for name in ("unet-table", "unet-steps", "unet-sweep"):
        assert f"![{name}]({name}.png)" in page
        assert (folder / f"{name}.svg").exists()
    assert json.loads((folder / "unet.json").read_text())["survey_epoch_seconds"]["single"] == 24.76


@pytest.mark.parametrize(
    ("fits", "order"),
    [
        ((True, True, True, False), "dcba"),
        ((True, True, False, False), "cbda"),
        ((False, False, False, False), "abcd"),
        ((True, True, True, True), "dcba"),
    ],
)
def test_models_close_to_the_first_that_does_not_fit_come_first(fits: tuple[bool, ...], order: str) -> None:
    assert nearest_first("abcd", fits) == list(order)


def test_models_that_would_not_fit_and_were_not_run_are_reported() -> None:
    not_run = [
        replace(point, status="not begun", measured_bytes=None) for point in POINTS if point.samples_per_second is None
    ]
    sentences = sweep_words([point for point in POINTS if point.samples_per_second] + not_run, 0.4)
    assert (
        "Data parallel fits in 0.4 GB per device with 8 M parameters; 30 M (planned: 0.60 GB) would not fit and was "
        "not run."
    ) in sentences


@pytest.mark.parametrize("setup", [CPU, CPU_QUICK, GPU, GPU_QUICK])
def test_every_model_of_the_sweep_can_be_built(setup: Setup) -> None:
    for model in setup.models:
        assert resolve(setup.name(*model)).name == setup.name(*model)


def test_the_memory_limit_of_the_sweep_is_removed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMORY_LIMIT, raising=False)
    with unet._limited(0.5):
        assert memory_limit_bytes() == 500_000_000
    assert memory_limit_bytes() is None


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
@pytest.mark.parametrize("kind", ["cuda", "slice"])
def test_missing_devices_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this machine has (0|none|no GPU).*use --device-kind cpu"):
        unet.run(tmp_path, True, lambda _: None, kind)
