"""The survey's comparison from runs to its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scalewise.errors import UserError
from scalewise.experiments import unet
from scalewise.experiments.unet import conclude
from scalewise.experiments.unet_runs import Ran, as_first_device_sees, as_measured, phases_by_rank, typical_step
from scalewise.experiments.unet_setup import CPU, CPU_QUICK, GPU, GPU_QUICK, Setup, nearest_first
from scalewise.experiments.unet_sweep import Spot, sweep_words
from scalewise.experiments.unet_words import apart, comparison, headline
from scalewise.results.experiment import ExperimentResult
from scalewise.step.room import MEMORY_LIMIT, memory_limit_bytes
from scalewise.timeline import Span, Timeline
from scalewise.workloads.resolve import resolve

ALONE = Ran(10.0, 0.100, ({"forward": 0.040, "backward": 0.060},), 0, 36_000_000, 36_000_000)
DATA = Ran(6.25, 0.0625, ({"forward": 0.020, "backward": 0.030, "reduce": 0.0125},) * 2, 1_000_000)
TURNS = Ran(
    11.0,
    0.110,
    (
        {"forward": 0.020, "backward": 0.030, "send": 0.002, "idle": 0.058},
        {"receive": 0.003, "forward": 0.020, "backward": 0.030, "idle": 0.057},
    ),
    8_000_000,
)
PIPELINE = Ran(7.0, 0.070, ({"forward": 0.022, "backward": 0.033, "idle": 0.015},) * 2, 8_000_000)


def with_a_step(ran: Ran) -> Ran:
    spans: list[Span] = []
    for rank, phases in enumerate(ran.ranks):
        start = 0.0
        for phase, seconds in phases.items():
            spans.append(Span(rank, phase, start, seconds))
            start += seconds
    return replace(ran, step=tuple(spans))


RAN = {
    name: with_a_step(ran)
    for name, ran in {"single": ALONE, "mirrored": DATA, "layers": TURNS, "pipeline": PIPELINE}.items()
}


def spot(parameters: int, strategy: str, rate: float | None, planned_GB: float) -> Spot:
    status = "ok" if rate else "oom"
    measured = round(planned_GB * 1e9) if rate else None
    return Spot(f"unet:width={parameters}", parameters, strategy, rate, status, round(planned_GB * 1e9), measured, 0.4)


SPOTS = [
    spot(100_000, "single", 100.0, 0.01),
    spot(100_000, "mirrored", 180.0, 0.01),
    spot(100_000, "pipeline", 120.0, 0.01),
    spot(8_000_000, "single", 10.0, 0.2),
    spot(8_000_000, "mirrored", 12.0, 0.2),
    spot(8_000_000, "pipeline", 15.0, 0.1),
    spot(30_000_000, "single", None, 0.5),
    spot(30_000_000, "mirrored", None, 0.6),
    spot(30_000_000, "pipeline", 4.0, 0.3),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return conclude(tmp_path_factory.mktemp("unet"), CPU_QUICK, RAN, SPOTS, "a machine")


def test_speedups_stand_beside_the_surveys(result: ExperimentResult) -> None:
    assert result.headline == (
        "Found on a machine: two devices train the U-Net 1.60x data parallel, 0.91x model parallel, 1.43x as a "
        "pipeline; the survey has 1.30x and 1.04x"
    )
    assert result.rows[1][:4] == ["mirrored", "18.976 s, 1.30x", "6.25 s, 1.60x", "80% / 80%"]
    assert result.rows[3][1:3] == ["-", "7 s, 1.43x"]


def test_a_headline_without_runs_on_two_devices_says_so() -> None:
    assert headline("a machine", {"single": ALONE}) == (
        "Found on a machine: no run on two devices got done; the survey has 1.30x and 1.04x"
    )


def test_every_difference_has_its_reason_in_numbers() -> None:
    alone, data, turns, pipeline = comparison(RAN)
    assert alone.startswith(
        "One device: 10 s an epoch; the survey's has 24.76 s, with a width, images and a batch that"
    )
    assert "Each device computes 50% as long as one alone" in data
    assert "20% of the step, in the mean of both, goes to 976.6 KiB of gradients" in data
    assert "they spent 35% of theirs on it: more than here" in data
    assert "they compute 45% and 45% of the step" in turns
    assert "Together that is 100 ms of a step's 110 ms" in turns
    assert "the survey's 4% must come from something else" in turns
    assert "1.43x, 1.57x the model parallel one" in pipeline


def test_where_data_parallelism_no_longer_fits_or_wins_is_said() -> None:
    said = sweep_words(SPOTS, 0.4)
    assert "Data parallel fits 0.4 GB a device up to 8 M parameters; 30 M, planned 0.60 GB, run out of memory." in said
    assert "Pipeline fits 0.4 GB a device with all models that were measured, up to 30 M parameters." in said
    assert said[-1] == (
        "From 8 M parameters on pipeline is the quickest that runs: it is 1.25x as fast as data parallelism, which "
        "spends 40% of its step on gradients by then."
    )


def test_a_model_that_only_model_parallelism_holds_is_won_by_memory() -> None:
    said = sweep_words([each for each in SPOTS if each.parameters != 8_000_000], 0.4)
    assert said[-1] == (
        "With 30 M parameters, the most that was compared, pipeline is the quickest that runs: data parallelism no "
        "longer fits: by memory, not by speed."
    )


@pytest.mark.parametrize("status", ["not begun", "failed"])
def test_where_data_parallelism_was_not_seen_nobody_has_won(status: str) -> None:
    unseen = [replace(each, status=status) if not each.samples_per_second else each for each in SPOTS]
    assert sweep_words(unseen, 0.4)[-1] == (
        "With 8 M parameters, the most that was compared, pipeline is the quickest that runs: it is 1.25x as fast as "
        "data parallelism, which spends 40% of its step on gradients by then."
    )


def test_who_is_quickest_again_with_larger_models_is_said() -> None:
    again = [*SPOTS[:6], spot(30_000_000, "mirrored", 9.0, 0.3), spot(30_000_000, "pipeline", 4.0, 0.3)]
    assert sweep_words(again, 0.4)[-1] == (
        "With 8 M parameters pipeline is the quickest that runs: it is 1.25x as fast as data parallelism, which spends "
        "40% of its step on gradients by then; with 30 M data parallel is again."
    )


def test_a_strategy_that_only_ran_out_of_memory_is_not_passed_over() -> None:
    said = sweep_words([*SPOTS, spot(8_000_000, "sharded", None, 0.5)], 0.4)
    assert "Sharded fits 0.4 GB a device with no model that was tried: 8 M parameters run out of memory." in said


def test_gains_of_turns_are_said_to_come_from_where_they_do() -> None:
    quick = Ran(8.0, 0.080, ({"forward": 0.020, "backward": 0.020, "idle": 0.040},) * 2, 8_000_000)
    assert (
        "halves of the model that compute quicker than the whole, in 80% of one device's seconds"
        in comparison({**RAN, "layers": quick})[2]
    )
    assert "the survey's 4% may too" in comparison({**RAN, "layers": quick})[2]
    unlike = Ran(8.0, 0.080, ({"forward": 0.020, "backward": 0.030, "idle": 0.030},) * 2, 8_000_000)
    assert "come from computing, of which both halves take 100%" in comparison({**RAN, "layers": unlike})[2]


def test_phases_are_told_rank_by_rank_from_the_quicker_half_of_the_steps() -> None:
    steps = [(0, 2.0), (1, 4.0), (2, 9.0), (3, 90.0)]
    spans = [Span(0, "forward", 100.0 * step, seconds, step=step) for step, seconds in steps]
    spans += [Span(1, "idle", 100.0 * step, 1.0, step=step) for step, _ in steps]
    assert phases_by_rank(Timeline(tuple(spans)), 2) == ({"forward": 3.0}, {"idle": 1.0})


def test_what_was_watched_is_told_in_seconds_of_the_step_that_was_measured() -> None:
    spans = (Span(0, "forward", 0.0, 0.1), Span(1, "idle", 0.05, 0.15))
    ran = as_measured(Ran(10.0, 0.1, ({"forward": 0.15, "reduce": 0.05}, {"idle": 0.1}), 0, step=spans))
    assert [pytest.approx(phases) for phases in ran.ranks] == [{"forward": 0.075, "reduce": 0.025}, {"idle": 0.05}]
    # The second device takes longest, 150 ms; that it begins after the first makes neither longer.
    assert [pytest.approx((span.start, span.seconds)) for span in ran.step] == [(0.0, 0.2 / 3), (0.1 / 3, 0.1)]
    [remark] = apart({"mirrored": ran, "single": as_measured(RAN["single"])})
    assert remark.startswith("A step of data parallel took 200 ms in the run that tells its phases, and 100 ms where")


def test_the_step_that_is_shown_is_the_one_in_the_middle_from_0_on() -> None:
    spans = [Span(rank, "forward", 10.0 * step + rank, 1.0 + step, step=step) for step in (0, 1, 2) for rank in (0, 1)]
    assert typical_step(Timeline(tuple(spans))) == (
        Span(0, "forward", 0.0, 2.0, step=1),
        Span(1, "forward", 0.0, 2.0, step=1),
    )
    near = [replace(span, start=span.start - 0.5 * span.rank) for span in spans]
    assert [span.start for span in typical_step(Timeline(tuple(near)))] == [0.0, 0.5]


def test_a_device_that_is_ahead_is_drawn_waiting_for_the_next_step_at_the_end_of_this_one() -> None:
    """The second began 3 s before the first, and waited for 5."""
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
        (1, "idle", 4.0, 3.0),  # as soon as it is done
        (1, "idle", 0.0, 2.0),
        (1, "forward", 2.0, 2.0),
    ]
    behind = [Span(0, "forward", 0.0, 4.0), Span(1, "idle", 1.0, 1.0), Span(1, "forward", 2.0, 3.0)]
    assert [(span.start, span.seconds) for span in as_first_device_sees(behind)[1:]] == [
        (1.0, 1.0),
        (2.0, 2.0),
        (0.0, 1.0),
    ]


def test_what_a_device_computes_of_the_step_that_is_shown_is_that_steps_own() -> None:
    shown = (Span(0, "forward", 0.0, 1.0), Span(0, "idle", 1.0, 3.0), Span(1, "forward", 0.0, 4.0))
    ran = Ran(10.0, 4.0, ({"forward": 2.0, "idle": 2.0}, {"forward": 4.0}), 0, step=shown)
    assert [ran.computing_shown(rank) for rank in (0, 1)] == [0.25, 1.0]


def test_the_page_shows_its_figures_and_keeps_its_numbers(result: ExperimentResult) -> None:
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
def test_models_around_the_first_that_does_not_fit_come_first(fits: tuple[bool, ...], order: str) -> None:
    assert nearest_first("abcd", fits) == list(order)


def test_what_was_not_run_and_would_not_fit_is_said_to_be_planned() -> None:
    left = [replace(each, status="not begun", measured_bytes=None) for each in SPOTS if each.samples_per_second is None]
    said = sweep_words([each for each in SPOTS if each.samples_per_second] + left, 0.4)
    assert (
        "Data parallel fits 0.4 GB a device with 8 M parameters; 30 M, planned 0.60 GB, would not, and were not run."
    ) in said


@pytest.mark.parametrize("setup", [CPU, CPU_QUICK, GPU, GPU_QUICK])
def test_every_model_of_the_sweep_can_be_built(setup: Setup) -> None:
    for model in setup.models:
        assert resolve(setup.name(*model)).name == setup.name(*model)


def test_the_limit_of_the_sweep_is_gone_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMORY_LIMIT, raising=False)
    with unet._limited(0.5):
        assert memory_limit_bytes() == 500_000_000
    assert memory_limit_bytes() is None


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
@pytest.mark.parametrize("kind", ["cuda", "slice"])
def test_devices_that_there_are_not_are_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"and this machine has (0|none); use --device-kind cpu"):
        unet.run(tmp_path, True, lambda _: None, kind)
