"""Micro-batches and stages of a pipeline, chosen together: decided here, for plans and engines alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from scalewise.plan import Footprint, Section
from scalewise.strategies.microbatches import (
    Microbatches,
    choices_for,
    given_microbatches,
    least_samples,
    without_costs,
)
from scalewise.strategies.schedules import Kind, most_under_way, schedule_of
from scalewise.strategies.stage_cuts import MODEL_COPIES, check_stages, stage_ranges
from scalewise.strategies.step_length import PACES, Pace, StepLength
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class Filling:
    """Micro-batches of a batch, and the sections of every stage."""

    number: int
    size: int
    ranges: tuple[range, ...]


@dataclass(frozen=True)
class Shape:
    """What a strategy says of its pipeline."""

    kind: Kind
    stages_each: int = 1
    """Of every device."""
    given: int | None = None
    """Micro-batches."""
    cut: str = ""
    recompute: bool = False


def filling_of(shape: Shape, footprint: Footprint, devices: int, batch: int, backend: Backend) -> Filling:
    """As many micro-batches as given, or as an engine chose; else as make the shortest step, of those that fit."""
    known, norms = footprint, footprint.norms_batches
    if not shape.cut:
        check_stages(known.sections, devices * shape.stages_each)
    if shape.given:
        choices = [given_microbatches(shape.given, batch, devices, shape.kind)]
    elif known.microbatches:
        choices = [Microbatches(known.microbatches, max(least_samples(batch, norms), -(-batch // known.microbatches)))]
    elif not known.sections or devices == 1:
        choices = [without_costs(batch, devices, shape.kind, norms_batches=norms)]
    else:
        choices = choices_for(batch, devices, shape.kind, norms_batches=norms)
    pace = PACES[known.on_gpu or backend == "nccl", backend]
    return _filled(shape, known.sections, devices, tuple(choices), known.room_bytes, known.state_copies, pace)


@lru_cache(maxsize=1024)
def _filled(
    shape: Shape,
    sections: tuple[Section, ...],
    devices: int,
    choices: tuple[Microbatches, ...],
    room_bytes: int | None,
    state_copies: int,
    pace: Pace,
) -> Filling:
    tried = [_Trial(shape, sections, devices, each, room_bytes, state_copies) for each in choices]
    if len(tried) > 1 and room_bytes is not None:
        room = max(room_bytes, min(each.held_bytes for each in tried))
        tried = [each for each in tried if each.held_bytes <= room]
    best = min(tried, key=lambda each: each.step_flops(pace)) if len(tried) > 1 else tried[0]
    return Filling(*best.microbatches, best.ranges)


class _Trial:
    """One number of micro-batches, the stages that go with it, and what comes of them."""

    def __init__(
        self,
        shape: Shape,
        sections: Sequence[Section],
        devices: int,
        microbatches: Microbatches,
        room_bytes: int | None,
        state_copies: int,
    ) -> None:
        self.shape, self.sections, self.devices = shape, sections, devices
        self.microbatches, self.copies = microbatches, MODEL_COPIES + state_copies
        self.schedule = schedule_of(shape.kind, devices, shape.stages_each, microbatches.number)
        under_way = most_under_way(self.schedule, devices * shape.stages_each)
        self.samples = [microbatches.size * (1 if shape.recompute else most) for most in under_way]
        room = None if room_bytes is None else room_bytes // shape.stages_each
        self.ranges = tuple(stage_ranges(sections, self.samples, shape.cut, room, state_copies))

    @property
    def held_bytes(self) -> int:
        """On the fullest device: its stages, what they keep, and the places of all that arrives."""
        held = [0] * self.devices
        arriving = self.microbatches.number * self.microbatches.size
        for stage, (within, samples) in enumerate(zip(self.ranges, self.samples, strict=True)):
            mine = self.sections[within.start : within.stop]
            came = self.sections[within.start - 1].passed_bytes if within.start else ()
            returned = mine[-1].returned_bytes if within.stop < len(self.sections) else ()
            held[stage % self.devices] += (
                sum(self.copies * each.trained_bytes + each.frozen_bytes for each in mine)
                + samples * sum(each.kept_bytes for each in mine)
                + arriving * (sum(came) + sum(returned))
            )
        return max(held)

    def step_flops(self, pace: Pace) -> float:
        length = StepLength(self.sections, self.ranges, self.microbatches.size, pace, self.shape.recompute)
        return length.of(self.schedule)
