"""A run of the U-Net under one strategy: its seconds, and where they went on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scalewise.phases import PHASES
from scalewise.published.unet import DATA_PARALLEL, MODEL_PARALLEL, SINGLE, SURVEY_EPOCH_SECONDS
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

    def computing_shown(self, rank: int) -> float:
        """The same of the one step that is shown."""
        own = [span for span in self.step if span.rank == rank and span.lane == "compute"]
        computing = sum(span.seconds for span in own if span.phase in COMPUTING)
        return computing / (sum(span.seconds for span in own) or 1.0)

    @property
    def computing_seconds(self) -> float:
        """Of all ranks together."""
        return sum(phases.get(phase, 0.0) for phases in self.ranks for phase in COMPUTING)


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


def as_first_device_sees(step: Sequence[Span]) -> list[Span]:
    """From when the first device begins a step until it begins the next. Steps are all alike: a device that is ahead
    does at the end of that time, for the next step, what it did before it for this one."""
    ranks = {span.rank for span in step}
    zero = min((span.start for span in step if span.rank == min(ranks)), default=0.0)
    period = max((_seconds_of(step, rank) for rank in ranks), default=0.0)
    seen: list[Span] = []
    for span in step:
        start, own = span.start - zero, _seconds_of(step, span.rank)
        end = start + span.seconds
        pieces = [(start + own, min(end, 0.0) + own), (max(start, 0.0), min(end, period))]
        pieces.append((max(start, period) - own, end - own))
        seen += [replace(span, start=at, seconds=until - at) for at, until in pieces if until - at > period * 1e-6]
    return seen


def speedup(ran: Mapping[str, Ran], strategy: str) -> float:
    return ran[SINGLE].epoch_seconds / ran[strategy].epoch_seconds


def survey_speedup(strategy: str) -> float:
    return SURVEY_EPOCH_SECONDS[SINGLE] / SURVEY_EPOCH_SECONDS[strategy]
