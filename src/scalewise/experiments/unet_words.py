"""What the U-Net's runs say, in words with numbers: beside the survey's table, and over models that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean

from scalewise.phases import PHASES
from scalewise.published.unet import DATA_PARALLEL, MODEL_PARALLEL, SINGLE, SURVEY_EPOCH_SECONDS
from scalewise.results.units import bytes_text, seconds_text
from scalewise.timeline import Span, Timeline

PIPELINE, SHARDED = "pipeline", "sharded"
NAMES = {
    SINGLE: "one device",
    DATA_PARALLEL: "data parallel",
    MODEL_PARALLEL: "model parallel",
    PIPELINE: "pipeline",
    SHARDED: "sharded",
}
COMPUTING = ("load", "forward", "loss", "backward", "update")
NOT_BEGUN = "not begun"
EVEN = 0.03
"""Times that differ by less are called equal."""
APART = 0.2
"""Steps that were watched and steps that were measured: when they differ by more, it is said."""


@dataclass(frozen=True)
class Ran:
    """One strategy on the U-Net of the table: an epoch, and where the seconds of a step went on every rank."""

    epoch_seconds: float
    step_seconds: float
    ranks: tuple[dict[str, float], ...]
    """Seconds per step by phase."""
    sent_bytes: int
    """Per step, over all ranks."""
    planned_bytes: int | None = None
    """Of memory on a device, as is the next."""
    measured_bytes: int | None = None
    step: tuple[Span, ...] = ()
    """One of the steps, on all ranks, from 0 on."""
    watched_seconds: float | None = None
    """Of a step of the run that told the phases; what it told is stretched to the step that was measured."""

    def computing(self, rank: int) -> float:
        """The part of the step in which a rank computes."""
        phases = self.ranks[rank]
        return sum(phases.get(phase, 0.0) for phase in COMPUTING) / sum(phases.values())

    @property
    def computing_seconds(self) -> float:
        """Of all ranks together."""
        return sum(phases.get(phase, 0.0) for phases in self.ranks for phase in COMPUTING)


@dataclass(frozen=True)
class Spot:
    """One growing model under one strategy."""

    workload: str
    parameters: int
    strategy: str
    samples_per_second: float | None
    """None where it did not run."""
    status: str
    planned_bytes: int | None
    """Memory of a device, as is the next."""
    measured_bytes: int | None = None
    reduce_share: float = 0.0
    """Of the step: exchanging gradients, or waiting for that."""


def phases_by_rank(timeline: Timeline, ranks: int) -> tuple[dict[str, float], ...]:
    """Seconds per step, of the quicker half of the steps: what disturbs makes them longer, never shorter."""
    found: list[dict[str, float]] = [{} for _ in range(ranks)]
    steps = _by_seconds(timeline)
    quicker = steps[: (len(steps) + 1) // 2]
    for span in [span for spans in quicker for span in spans if span.lane == "compute"]:
        found[span.rank][span.phase] = found[span.rank].get(span.phase, 0.0) + span.seconds / len(quicker)
    return tuple({phase: each[phase] for phase in PHASES if phase in each} for each in found)


def _by_seconds(timeline: Timeline) -> list[list[Span]]:
    """The spans of every step, the quickest first."""
    steps: dict[int, list[Span]] = {}
    for span in timeline.spans:
        steps.setdefault(span.step, []).append(span)
    return sorted(steps.values(), key=lambda spans: sum(span.seconds for span in spans))


def as_measured(ran: Ran) -> Ran:
    """Phases and the step that is shown, stretched to the seconds of the step that was measured in another run."""
    watched = max((sum(phases.values()) for phases in ran.ranks), default=0.0)
    shown = max((_seconds_of(ran.step, rank) for rank in range(len(ran.ranks))), default=0.0)
    if not watched:
        return ran
    phases, spans = ran.step_seconds / watched, ran.step_seconds / shown if shown else 1.0
    return replace(
        ran,
        ranks=tuple({phase: seconds * phases for phase, seconds in each.items()} for each in ran.ranks),
        step=tuple(replace(span, start=span.start * spans, seconds=span.seconds * spans) for span in ran.step),
        watched_seconds=watched,
    )


def _seconds_of(step: Sequence[Span], rank: int) -> float:
    """Its own: ranks that take turns begin a step one after the other, and all together take longer than each."""
    own = [span for span in step if span.rank == rank]
    return max((span.start + span.seconds for span in own), default=0.0) - min(
        (span.start for span in own), default=0.0
    )


def apart(ran: Mapping[str, Ran]) -> list[str]:
    """Where the run that told the phases was not like the one that was measured."""
    return [
        f"A step of {NAMES[name]} took {seconds_text(each.watched_seconds)} in the run that tells its phases, and "
        f"{seconds_text(each.step_seconds)} where it was measured: read its shares with care."
        for name, each in ran.items()
        if each.watched_seconds and abs(each.watched_seconds / each.step_seconds - 1) > APART
    ]


def typical_step(timeline: Timeline) -> tuple[Span, ...]:
    """The one in the middle by its seconds. Clocks of GPUs start at 0 on every rank: those are put side by side."""
    ordered = _by_seconds(timeline)
    if not ordered:
        return ()
    chosen = ordered[len(ordered) // 2]
    starts = {span.rank: min(each.start for each in chosen if each.rank == span.rank) for span in chosen}
    longest = max(sum(each.seconds for each in chosen if each.rank == rank) for rank in starts)
    one_clock = max(starts.values()) - min(starts.values()) < longest / 2
    zero = min(starts.values())
    return tuple(replace(span, start=span.start - (zero if one_clock else starts[span.rank])) for span in chosen)


def speedup(ran: Mapping[str, Ran], strategy: str) -> float:
    return ran[SINGLE].epoch_seconds / ran[strategy].epoch_seconds


def survey_speedup(strategy: str) -> float:
    return SURVEY_EPOCH_SECONDS[SINGLE] / SURVEY_EPOCH_SECONDS[strategy]


def headline(machine: str, ran: Mapping[str, Ran]) -> str:
    how = {DATA_PARALLEL: "data parallel", MODEL_PARALLEL: "model parallel", PIPELINE: "as a pipeline"}
    parts = [f"{speedup(ran, name):.2f}x {words}" for name, words in how.items() if name in ran]
    survey = f"{survey_speedup(DATA_PARALLEL):.2f}x and {survey_speedup(MODEL_PARALLEL):.2f}x"
    if not parts:
        return f"Found on {machine}: no run on two devices got done; the survey has {survey}"
    return f"Found on {machine}: two devices train the U-Net {', '.join(parts)}; the survey has {survey}"


def comparison(ran: Mapping[str, Ran]) -> list[str]:
    """A sentence or more for each row of the survey's table, and why it differs."""
    said = [_alone(ran[SINGLE])]
    if DATA_PARALLEL in ran:
        said.append(_data_parallel(ran))
    if MODEL_PARALLEL in ran:
        said.append(_model_parallel(ran))
    if PIPELINE in ran:
        said.append(_pipeline(ran))
    return said


def _alone(here: Ran) -> str:
    return (
        f"One device: {seconds_text(here.epoch_seconds)} an epoch; the survey's has {SURVEY_EPOCH_SECONDS[SINGLE]:g} s"
        ", with a width, images and a batch that it does not give: seconds cannot be compared, only how many times as "
        "fast two devices are."
    )


def _data_parallel(ran: Mapping[str, Ran]) -> str:
    here, alone = ran[DATA_PARALLEL], ran[SINGLE]
    ours, theirs = speedup(ran, DATA_PARALLEL), survey_speedup(DATA_PARALLEL)
    other = 1 - fmean(here.computing(rank) for rank in range(len(here.ranks)))
    share = here.computing_seconds / len(here.ranks) / alone.computing_seconds
    return (
        f"Data parallel: an epoch takes {seconds_text(here.epoch_seconds)} on two devices and "
        f"{seconds_text(alone.epoch_seconds)} on one, {ours:.2f}x; the survey has {theirs:.2f}x. Each device computes "
        f"{share:.0%} as long as one alone, for half the samples; {other:.0%} of the step, in the mean of both, goes "
        f"to {bytes_text(here.sent_bytes)} of gradients and to waiting for the other. If the survey's GPUs computed "
        f"half as long, they spent {1 - theirs / 2:.0%} of theirs on it: {_more_or_less(other, 1 - theirs / 2)} than "
        "here."
    )


def _model_parallel(ran: Mapping[str, Ran]) -> str:
    here, alone = ran[MODEL_PARALLEL], ran[SINGLE]
    ours, theirs = speedup(ran, MODEL_PARALLEL), survey_speedup(MODEL_PARALLEL)
    moving = max(sum(phases.get(phase, 0.0) for phase in ("send", "receive")) for phases in here.ranks)
    return (
        f"Model parallel: {seconds_text(here.epoch_seconds)} an epoch, {ours:.2f}x; the survey has {theirs:.2f}x. The "
        f"devices take turns: they compute {_each(here)} of the step. Together that is "
        f"{seconds_text(here.computing_seconds)} of a step's {seconds_text(here.step_seconds)}, and one device "
        f"computes {seconds_text(alone.computing_seconds)}; what comes on top is {bytes_text(here.sent_bytes)} of "
        f"activations, skip connections and their gradients, {seconds_text(moving)} of sending and receiving. Turns by "
        f"themselves save nothing: {_beyond_turns(ours, here, alone)}"
    )


def _beyond_turns(ours: float, here: Ran, alone: Ran) -> str:
    quicker = here.computing_seconds / alone.computing_seconds
    theirs = f"the survey's {survey_speedup(MODEL_PARALLEL) - 1:.0%}"
    if ours <= 1 + EVEN:
        return (
            f"{theirs} must come from something else: parts of a batch that overlap, as below, or a device that "
            f"computes half a model in less than half the time. Here both halves take {quicker:.0%} of one device's "
            "seconds."
        )
    if quicker < 1:
        return (
            f"what is gained here comes from halves of the model that compute quicker than the whole, in {quicker:.0%} "
            f"of one device's seconds, as where each device's caches hold more of its half; {theirs} may too."
        )
    return (
        f"nor does what is gained here come from computing, of which both halves take {quicker:.0%} of one device's "
        "seconds: the runs were not alike."
    )


def _pipeline(ran: Mapping[str, Ran]) -> str:
    here = ran[PIPELINE]
    longer = here.computing_seconds / ran[SINGLE].computing_seconds
    against = f", {speedup(ran, PIPELINE) / speedup(ran, MODEL_PARALLEL):.2f}x the model parallel one" * (
        MODEL_PARALLEL in ran
    )
    return (
        f"With micro-batches (pipeline): {seconds_text(here.epoch_seconds)} an epoch, {speedup(ran, PIPELINE):.2f}x"
        f"{against}: both devices work at the same time and compute {_each(here)} of the step. In parts of a "
        f"batch the same work takes {longer:.2f} times as long as on one device; the rest of the step is its start and "
        f"end, stages that are not equally long, and {bytes_text(here.sent_bytes)} that go between them."
    )


def _each(ran: Ran) -> str:
    return " and ".join(f"{ran.computing(rank):.0%}" for rank in range(len(ran.ranks)))


def _more_or_less(here: float, there: float) -> str:
    if abs(here - there) < EVEN:
        return "neither more nor less"
    return "more" if there > here else "less"


def sweep_words(spots: Sequence[Spot], limit_GB: float) -> list[str]:
    """Where data parallelism no longer fits, or no longer wins."""
    said = []
    for strategy in NAMES:
        own = sorted((spot for spot in spots if spot.strategy == strategy), key=lambda spot: spot.parameters)
        full = [spot for spot in own if spot.status == "oom"]
        ran = [spot for spot in own if spot.samples_per_second]
        over = [each for each in own if each.status == NOT_BEGUN and (each.planned_bytes or 0) > limit_GB * 1e9]
        if full and ran:
            first = full[0]
            planned = f", planned {first.planned_bytes / 1e9:.2f} GB," if first.planned_bytes else ""
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device up to {millions(ran[-1])} parameters; "
                f"{millions(first)}{planned} run out of memory."
            )
        elif full:
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device with no model that was tried: "
                f"{millions(full[0])} parameters run out of memory."
            )
        elif over and ran:
            planned = f"planned {(over[0].planned_bytes or 0) / 1e9:.2f} GB"
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device with {millions(ran[-1])} parameters; "
                f"{millions(over[0])}, {planned}, would not, and were not run."
            )
        elif ran:
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device with all models that were measured, up "
                f"to {millions(ran[-1])} parameters."
            )
    return [*said, *_winners(spots)]


def _winners(spots: Sequence[Spot]) -> list[str]:
    """Of the models on which data parallelism was tried, whatever came of it."""
    rivals = {
        spot.workload: spot
        for spot in spots
        if spot.strategy == DATA_PARALLEL and (spot.samples_per_second or spot.status == "oom")
    }
    best: dict[str, Spot] = {}
    for spot in sorted(spots, key=lambda spot: spot.samples_per_second or 0.0):
        if spot.workload in rivals and spot.samples_per_second:
            best[spot.workload] = spot
    ordered = sorted(best.values(), key=lambda spot: spot.parameters)
    divided = [spot for spot in ordered if _divides(spot)]
    if not divided:
        largest = f", up to {millions(ordered[-1])} parameters" if ordered else ""
        return [f"Nothing that divides the model was the quickest anywhere{largest}."] if ordered else []
    last = list(takewhile(_divides, reversed(ordered)))[::-1]
    first = (last or divided)[0]
    names = list(dict.fromkeys(NAMES[spot.strategy] for spot in last)) or [NAMES[first.strategy]]
    where = f"From {millions(first)} parameters on" if len(last) > 1 else f"With {millions(first)} parameters"
    if len(last) == 1 and len(ordered) > 1:
        where += ", the most that was compared,"
    said = f"{where} {', then '.join(names)} is the quickest that runs: {_over(rivals[first.workload], first)}"
    if not last:
        said += f"; with {millions(ordered[-1])} {NAMES[ordered[-1].strategy]} is again"
    return [f"{said}."]


def _divides(spot: Spot) -> bool:
    return spot.strategy not in (SINGLE, DATA_PARALLEL)


def _over(rival: Spot, best: Spot) -> str:
    if not rival.samples_per_second or not best.samples_per_second:
        return "data parallelism no longer fits: by memory, not by speed"
    ahead = best.samples_per_second / rival.samples_per_second
    share = f"{rival.reduce_share:.0%} of its step"
    return f"it is {ahead:.2f}x as fast as data parallelism, which spends {share} on gradients by then"


def millions(spot: Spot) -> str:
    return f"{spot.parameters / 1e6:.3g} M"
