"""Runs of the U-Net comparison, the growing models and their findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean

from scalewise.core.timeline import PHASES, Span, Timeline, steps_by_seconds
from scalewise.core.units import bytes_text, seconds_text
from scalewise.published.tables import DATA_PARALLEL, MODEL_PARALLEL, SINGLE, SURVEY_EPOCH_SECONDS

PIPELINE, SHARDED = "pipeline", "sharded"
NAMES = {
    SINGLE: "one device",
    DATA_PARALLEL: "data parallel",
    MODEL_PARALLEL: "model parallel",
    PIPELINE: "pipeline",
    SHARDED: "sharded",
}
COMPUTING = ("load", "forward", "loss", "backward", "update")


@dataclass(frozen=True)
class StrategyRun:
    """Times, phases and memory of one strategy on the U-Net of the survey's table."""

    epoch_seconds: float
    step_seconds: float
    ranks: tuple[dict[str, float], ...]
    """Seconds per step by phase, for each rank."""
    sent_bytes: int
    """Bytes sent per step by all ranks."""
    planned_bytes: int | None = None
    """Planned memory per device."""
    measured_bytes: int | None = None
    """Measured peak memory per device."""
    step: tuple[Span, ...] = ()
    """Timeline of a typical step on all ranks, starting at 0."""
    watched_seconds: float | None = None
    """Step time of the run that recorded the phases, before they were scaled to the measured step time."""

    def computing(self, rank: int) -> float:
        """Return the fraction of a step in which a rank computes."""
        phases = self.ranks[rank]
        return sum(phases.get(phase, 0.0) for phase in COMPUTING) / sum(phases.values())

    def computing_shown(self, rank: int) -> float:
        """Return the fraction of the drawn step in which a rank computes."""
        own = [span for span in self.step if span.rank == rank and span.lane == "compute"]
        computing = sum(span.seconds for span in own if span.phase in COMPUTING)
        return computing / (sum(span.seconds for span in own) or 1.0)

    @property
    def computing_seconds(self) -> float:
        """Seconds per step in which ranks compute, summed over the ranks."""
        return sum(phases.get(phase, 0.0) for phases in self.ranks for phase in COMPUTING)


def phases_by_rank(timeline: Timeline, ranks: int) -> tuple[dict[str, float], ...]:
    """Average the phases of each rank over the faster half of the steps, because disturbances only slow steps down."""
    phases_of: list[dict[str, float]] = [{} for _ in range(ranks)]
    steps = steps_by_seconds(timeline)
    faster = steps[: (len(steps) + 1) // 2]
    for span in [span for spans in faster for span in spans if span.lane == "compute"]:
        phases_of[span.rank][span.phase] = phases_of[span.rank].get(span.phase, 0.0) + span.seconds / len(faster)
    return tuple({phase: phases[phase] for phase in PHASES if phase in phases} for phases in phases_of)


def as_measured(run: StrategyRun) -> StrategyRun:
    """Scale the phases and the drawn step to the step time that was measured in another run."""
    recorded = max((sum(phases.values()) for phases in run.ranks), default=0.0)
    drawn = max((_seconds_of(run.step, rank) for rank in range(len(run.ranks))), default=0.0)
    if not recorded:
        return run
    phase_factor, span_factor = run.step_seconds / recorded, run.step_seconds / drawn if drawn else 1.0
    return replace(
        run,
        ranks=tuple({phase: seconds * phase_factor for phase, seconds in phases.items()} for phases in run.ranks),
        step=tuple(
            replace(span, start=span.start * span_factor, seconds=span.seconds * span_factor) for span in run.step
        ),
        watched_seconds=recorded,
    )


def _seconds_of(step: Sequence[Span], rank: int) -> float:
    """Return the duration of a step on one rank, which may be shorter than on all ranks if ranks take turns."""
    own = [span for span in step if span.rank == rank]
    return max((span.start + span.seconds for span in own), default=0.0) - min(
        (span.start for span in own), default=0.0
    )


def as_first_device_sees(step: Sequence[Span]) -> list[Span]:
    """Show the step from the first device's start to its next start.

    Work that another device did before the first device's start is moved to the end, where the device does the same
    work for the next step.
    """
    ranks = {span.rank for span in step}
    zero = min((span.start for span in step if span.rank == min(ranks)), default=0.0)
    period = max((_seconds_of(step, rank) for rank in ranks), default=0.0)
    spans: list[Span] = []
    for span in step:
        start, own = span.start - zero, _seconds_of(step, span.rank)
        end = start + span.seconds
        pieces = [(start + own, min(end, 0.0) + own), (max(start, 0.0), min(end, period))]
        pieces.append((max(start, period) - own, end - own))
        spans += [replace(span, start=at, seconds=until - at) for at, until in pieces if until - at > period * 1e-6]
    return spans


def speedup(runs: Mapping[str, StrategyRun], strategy: str) -> float:
    return runs[SINGLE].epoch_seconds / runs[strategy].epoch_seconds


def survey_speedup(strategy: str) -> float:
    return SURVEY_EPOCH_SECONDS[SINGLE] / SURVEY_EPOCH_SECONDS[strategy]


NOT_STARTED = "not begun"


@dataclass(frozen=True)
class SweepPoint:
    """Result of one model of the sweep under one strategy."""

    workload: str
    parameters: int
    strategy: str
    samples_per_second: float | None
    """Throughput; None if the model was not measured."""
    status: str
    planned_bytes: int | None
    """Planned memory per device."""
    measured_bytes: int | None = None
    """Measured peak memory per device."""
    reduce_share: float = 0.0
    """Fraction of the step spent on reducing gradients, including waiting."""


def sweep_words(points: Sequence[SweepPoint], limit_GB: float) -> list[str]:
    """Say up to which model size each strategy fits in memory, and which strategy is the fastest."""
    sentences = []
    for strategy in NAMES:
        own = sorted((point for point in points if point.strategy == strategy), key=lambda point: point.parameters)
        failed = [point for point in own if point.status == "oom"]
        measured = [point for point in own if point.samples_per_second]
        too_large = [
            point for point in own if point.status == NOT_STARTED and (point.planned_bytes or 0) > limit_GB * 1e9
        ]
        name, limit = NAMES[strategy].capitalize(), f"in {limit_GB:g} GB per device"
        if failed and measured:
            planned = f" (planned: {failed[0].planned_bytes / 1e9:.2f} GB)" if failed[0].planned_bytes else ""
            sentences.append(
                f"{name} fits {limit} up to {millions(measured[-1])} parameters; with {millions(failed[0])}{planned} "
                "it runs out of memory."
            )
        elif failed:
            sentences.append(
                f"{name} does not fit {limit} with any model tried; with {millions(failed[0])} parameters it runs out "
                "of memory."
            )
        elif too_large and measured:
            planned = f"planned: {(too_large[0].planned_bytes or 0) / 1e9:.2f} GB"
            sentences.append(
                f"{name} fits {limit} with {millions(measured[-1])} parameters; {millions(too_large[0])} ({planned}) "
                "would not fit and was not run."
            )
        elif measured:
            sentences.append(
                f"{name} fits {limit} with all models measured, up to {millions(measured[-1])} parameters."
            )
    return [*sentences, *_fastest(points)]


def _fastest(points: Sequence[SweepPoint]) -> list[str]:
    """Say from which size on a strategy that splits the model is the fastest, where data parallelism was tried."""
    data_parallel = {
        point.workload: point
        for point in points
        if point.strategy == DATA_PARALLEL and (point.samples_per_second or point.status == "oom")
    }
    best: dict[str, SweepPoint] = {}
    for point in sorted(points, key=lambda point: point.samples_per_second or 0.0):
        if point.workload in data_parallel and point.samples_per_second:
            best[point.workload] = point
    ordered = sorted(best.values(), key=lambda point: point.parameters)
    split = [point for point in ordered if _splits_model(point)]
    if not ordered:
        return []
    if not split:
        return [
            f"No strategy that splits the model is the fastest at any size up to {millions(ordered[-1])} parameters."
        ]
    last = list(takewhile(_splits_model, reversed(ordered)))[::-1]
    first = (last or split)[0]
    names = list(dict.fromkeys(NAMES[point.strategy] for point in last)) or [NAMES[first.strategy]]
    sizes = f"From {millions(first)} parameters on," if len(last) > 1 else f"With {millions(first)} parameters,"
    if len(last) == 1 and len(ordered) > 1:
        sizes += " the largest model compared,"
    text = (
        f"{sizes} {', then '.join(names)} is the fastest that runs: {_advantage(data_parallel[first.workload], first)}"
    )
    if not last:
        text += f"; with {millions(ordered[-1])} parameters {NAMES[ordered[-1].strategy]} is the fastest again"
    return [f"{text}."]


def _splits_model(point: SweepPoint) -> bool:
    return point.strategy not in (SINGLE, DATA_PARALLEL)


def _advantage(data_parallel: SweepPoint, best: SweepPoint) -> str:
    if not data_parallel.samples_per_second or not best.samples_per_second:
        return "data parallelism runs out of memory"
    ratio = best.samples_per_second / data_parallel.samples_per_second
    share = f"{data_parallel.reduce_share:.0%} of its step"
    return f"it is {ratio:.2f}x as fast as data parallelism, which spends {share} on exchanging gradients"


def millions(point: SweepPoint) -> str:
    """Format the number of parameters: '8 M'."""
    return f"{point.parameters / 1e6:.3g} M"


EVEN = 0.03
"""Largest difference of two shares or speed-ups that count as equal."""
APART = 0.2
"""Relative difference between the recorded and the measured step time from which a remark is made."""


def headline(machine: str, runs: Mapping[str, StrategyRun]) -> str:
    """Summarize the speed-ups in one sentence."""
    labels = {DATA_PARALLEL: "data parallel", MODEL_PARALLEL: "model parallel", PIPELINE: "as a pipeline"}
    parts = [f"{speedup(runs, name):.2f}x {label}" for name, label in labels.items() if name in runs]
    survey = (
        f"{survey_speedup(DATA_PARALLEL):.2f}x data parallel and {survey_speedup(MODEL_PARALLEL):.2f}x model parallel"
    )
    if not parts:
        return f"Found on {machine}: no run on two devices succeeded; the survey has {survey}"
    return f"Found on {machine}: two devices train the U-Net {', '.join(parts)}; the survey has {survey}"


def comparison(runs: Mapping[str, StrategyRun]) -> list[str]:
    """Compare each row of the survey's table with this machine, and explain the difference."""
    sentences = [_single(runs[SINGLE])]
    if DATA_PARALLEL in runs:
        sentences.append(_data_parallel(runs))
    if MODEL_PARALLEL in runs:
        sentences.append(_model_parallel(runs))
    if PIPELINE in runs:
        sentences.append(_pipeline(runs))
    return sentences


def _single(run: StrategyRun) -> str:
    return (
        f"One device: {seconds_text(run.epoch_seconds)} per epoch; the survey has {SURVEY_EPOCH_SECONDS[SINGLE]:g} s "
        "but does not state the width, image size and batch of its U-Net, so only speed-ups can be compared."
    )


def _data_parallel(runs: Mapping[str, StrategyRun]) -> str:
    run, single = runs[DATA_PARALLEL], runs[SINGLE]
    here, survey = speedup(runs, DATA_PARALLEL), survey_speedup(DATA_PARALLEL)
    not_computing = 1 - fmean(run.computing(rank) for rank in range(len(run.ranks)))
    share = run.computing_seconds / len(run.ranks) / single.computing_seconds
    return (
        f"Data parallel: an epoch takes {seconds_text(run.epoch_seconds)} on two devices and "
        f"{seconds_text(single.epoch_seconds)} on one, {here:.2f}x; the survey has {survey:.2f}x. Each device computes "
        f"{share:.0%} as long as one device alone, for half the samples. {not_computing:.0%} of the step (mean of both "
        f"devices) goes to exchanging {bytes_text(run.sent_bytes)} of gradients and waiting for the other device. If "
        f"the survey's GPUs computed half as long as one, they spent {1 - survey / 2:.0%} of the step on this, "
        f"{_compared(not_computing, 1 - survey / 2)}."
    )


def _model_parallel(runs: Mapping[str, StrategyRun]) -> str:
    run, single = runs[MODEL_PARALLEL], runs[SINGLE]
    here, survey = speedup(runs, MODEL_PARALLEL), survey_speedup(MODEL_PARALLEL)
    sending = max(sum(phases.get(phase, 0.0) for phase in ("send", "receive")) for phases in run.ranks)
    return (
        f"Model parallel: {seconds_text(run.epoch_seconds)} per epoch, {here:.2f}x; the survey has {survey:.2f}x. The "
        f"devices take turns: they compute {_computing_text(run)} of the step. Together they compute for "
        f"{seconds_text(run.computing_seconds)} of the {seconds_text(run.step_seconds)} of a step, one device alone "
        f"for {seconds_text(single.computing_seconds)}; sending and receiving {bytes_text(run.sent_bytes)} of "
        f"activations, skip connections and their gradients adds {seconds_text(sending)}. Taking turns alone saves "
        f"nothing: {_gain_of_turns(here, run, single)}"
    )


def _gain_of_turns(here: float, run: StrategyRun, single: StrategyRun) -> str:
    share = run.computing_seconds / single.computing_seconds
    survey = f"the survey's {survey_speedup(MODEL_PARALLEL) - 1:.0%}"
    if here <= 1 + EVEN:
        return (
            f"{survey} must have another cause, such as overlapping micro-batches (see the pipeline) or halves of the "
            f"model that compute in less than half the time. Here both halves take {share:.0%} of one device's time."
        )
    if share < 1:
        return (
            f"the gain here comes from halves of the model that compute faster than the whole, in {share:.0%} of one "
            f"device's time, for example because they fit the caches better; {survey} may have the same cause."
        )
    return (
        f"the gain here does not come from computing either, because both halves take {share:.0%} of one device's "
        "time; the runs were not comparable."
    )


def _pipeline(runs: Mapping[str, StrategyRun]) -> str:
    run = runs[PIPELINE]
    ratio = run.computing_seconds / runs[SINGLE].computing_seconds
    against = f", {speedup(runs, PIPELINE) / speedup(runs, MODEL_PARALLEL):.2f}x as fast as model parallel" * (
        MODEL_PARALLEL in runs
    )
    return (
        f"Pipeline (model parallel with micro-batches): {seconds_text(run.epoch_seconds)} per epoch, "
        f"{speedup(runs, PIPELINE):.2f}x{against}. Both devices work at the same time and compute "
        f"{_computing_text(run)} of the step. Split into micro-batches, the same work takes {ratio:.2f} times as long "
        "as on one device; the rest of the step is the bubble, stages of unequal length and sending "
        f"{bytes_text(run.sent_bytes)}."
    )


def _computing_text(run: StrategyRun) -> str:
    return " and ".join(f"{run.computing(rank):.0%}" for rank in range(len(run.ranks)))


def _compared(here: float, survey: float) -> str:
    if abs(here - survey) < EVEN:
        return "about as much as here"
    return "more than here" if survey > here else "less than here"


def apart(runs: Mapping[str, StrategyRun]) -> list[str]:
    """Return remarks on runs whose recorded step time differs much from the measured one."""
    return [
        f"A step of {NAMES[name]} took {seconds_text(run.watched_seconds)} in the run that recorded its phases but "
        f"{seconds_text(run.step_seconds)} when it was measured, so its shares are approximate."
        for name, run in runs.items()
        if run.watched_seconds and abs(run.watched_seconds / run.step_seconds - 1) > APART
    ]
