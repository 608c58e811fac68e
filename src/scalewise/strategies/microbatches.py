"""Choose the number of micro-batches and the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from scalewise.core.errors import UserError
from scalewise.hardware.collectives import Backend
from scalewise.strategies.partitioning import FLOPS_PER_BYTE, MODEL_COPIES, check_stages, costs_of, stage_ranges
from scalewise.strategies.plan import Footprint, Section
from scalewise.strategies.stage_plan import Kind, Work, most_under_way, schedule_of

MOST_PER_DEVICE = 8
"""Largest number of micro-batches per device that is tried; at most an eighth of the step is then idle."""
TIMES_DEVICES = (1, 1.5, 2, 3, 4, 6, MOST_PER_DEVICE)
"""Numbers of micro-batches to try, as multiples of the number of devices."""
WITHOUT_COSTS = 4
"""Largest number of micro-batches per device for a model with unknown costs."""


class Microbatches(NamedTuple):
    """Split of a batch into micro-batches; the last ones are padded with samples of zero weight."""

    number: int
    size: int
    """Samples per micro-batch."""


def given_microbatches(given: int, batch: int, devices: int, kind: Kind) -> Microbatches:
    """Use the number of micro-batches given by the user, or raise UserError if the schedule cannot."""
    if given > batch:
        raise UserError(f"microbatches={given} is more than the batch of {batch}", f"use at most {batch}")
    if kind == "1f1b" and given < devices:
        raise UserError(
            f"microbatches={given} is too few for {devices} devices: schedule=1f1b needs at least one per device",
            f"use microbatches={devices} or more, or schedule=gpipe",
        )
    if kind == "interleaved" and (left := _rounds_left_over(given, devices)):
        raise UserError(
            f"microbatches={given} leaves {left} over: schedule=interleaved needs {given // devices} equal rounds",
            f"use a multiple of {devices}",
        )
    return Microbatches(given, -(-batch // given))


def choices_for(batch: int, devices: int, kind: Kind, *, norms_batches: bool = False) -> list[Microbatches]:
    """Candidate splits with one to eight micro-batches per device, each with the least padding.

    Micro-batches have at least two samples if the model normalizes over the batch.
    """
    smallest = least_samples(batch, norms_batches)
    fewest, most = devices if kind == "1f1b" else 1, -(-batch // smallest)
    first, last = max(fewest, min(devices, most)), max(fewest, min(MOST_PER_DEVICE * devices, most))
    possible = [
        Microbatches(count, max(smallest, -(-batch // count)))
        for count in range(first, last + 1)
        if kind != "interleaved" or not _rounds_left_over(count, devices)
    ]
    choices: list[Microbatches] = []
    for times in TIMES_DEVICES:
        most_so_far = choices[-1].number if choices else 0
        if between := [split for split in possible if most_so_far < split.number <= times * devices]:
            choices.append(_least_padded(between, batch))
    return choices or [_least_padded(possible, batch)]


def least_samples(batch: int, norms_batches: bool) -> int:
    """Smallest size of a micro-batch that is chosen automatically."""
    return min(batch, 2) if norms_batches else 1


def without_costs(batch: int, devices: int, kind: Kind, *, norms_batches: bool = False) -> Microbatches:
    """Split with the least padding into as many micro-batches as possible, up to four per device."""
    choices = choices_for(batch, devices, kind, norms_batches=norms_batches)
    few = [split for split in choices if split.number <= WITHOUT_COSTS * devices]
    return _least_padded(few or choices, batch)


def _least_padded(choices: list[Microbatches], batch: int) -> Microbatches:
    return min(choices, key=lambda split: (split.number * split.size - batch, -split.number))


def _rounds_left_over(count: int, devices: int) -> int:
    return count % max(1, count // devices)


BACKWARD = 2.0
"""Compute time and number of kernels of backward relative to forward."""
WEIGHTS_MOVED = {"forward": 1, "backward": 5}
"""Passes over memory of the size of the weights per micro-batch. forward: weights read. backward: weights read,
gradients written, and added to those of the previous micro-batch."""
OPERATIONS = 8
"""Kernels of a section's forward, if the number is not known."""


class Overheads(NamedTuple):
    """Overheads of a device, in flops that it could compute in the same time."""

    operation: float
    """Launch of one kernel."""
    message: float
    """Latency of one message."""
    sent_byte: float
    """Transfer of one byte."""


OVERHEADS: dict[tuple[bool, Backend], Overheads] = {
    (False, "gloo"): Overheads(2.5e5, 5e6, 50),
    (True, "gloo"): Overheads(2.5e8, 4e9, 8000),
    (True, "nccl"): Overheads(2.5e8, 7e8, 200),
}
"""Overheads by (is a GPU, backend): CPU cores of 50 GFLOPS with sockets of 1 GB/s, GPUs of 40 TFLOPS that communicate
through host memory, and GPUs of 40 TFLOPS with NVLink."""

EndTimes = dict[tuple[int, int], float]
"""End time of each (stage, micro-batch)."""


@dataclass(frozen=True)
class StepTime:
    """Estimate of the step time of a pipeline."""

    sections: Sequence[Section]
    ranges: Sequence[range]
    """Sections of every stage."""
    size: int
    """Samples per micro-batch."""
    overheads: Overheads
    recompute: bool = False

    def flops(self, schedule: Sequence[Sequence[Work]]) -> float:
        """Step time in flops: every device does its work in order, each item as soon as its input has arrived."""
        lengths, hops = self._pass_flops(), self._hop_flops()
        forward: EndTimes = {}
        backward: EndTimes = {}
        free, at = [0.0] * len(schedule), [0] * len(schedule)
        while any(done < len(works) for done, works in zip(at, schedule, strict=True)):
            for device, works in enumerate(schedule):
                for work in works[at[device] :]:
                    arrival = self._arrival(work, forward, backward, hops)
                    if arrival is None:
                        break
                    ends = forward if work.phase == "forward" else backward
                    free[device] = max(arrival, free[device]) + lengths[work.phase][work.stage]
                    ends[work.stage, work.microbatch] = free[device]
                    at[device] += 1
        return max(free)

    def _arrival(self, work: Work, forward: EndTimes, backward: EndTimes, hops: Sequence[float]) -> float | None:
        """Time at which the input of `work` arrives; None: not known yet."""
        stage, number = work.stage, work.microbatch
        if work.phase == "backward" and stage == len(self.ranges) - 1:
            return forward.get((stage, number))
        if work.phase == "backward":
            returned = backward.get((stage + 1, number))
            return None if returned is None else returned + hops[stage]
        passed = forward.get((stage - 1, number)) if stage else 0.0
        return None if passed is None else passed + (hops[stage - 1] if stage else 0.0)

    def _pass_flops(self) -> dict[str, list[float]]:
        """Flops of forward and of backward of one micro-batch, by stage."""
        costs = costs_of(self.sections)
        forward = [
            sum(
                self.size * costs[at] + self.overheads.operation * (self.sections[at].operations or OPERATIONS)
                for at in stage
            )
            for stage in self.ranges
        ]
        moved = [FLOPS_PER_BYTE * sum(self.sections[at].parameter_bytes for at in stage) for stage in self.ranges]
        times = BACKWARD + self.recompute
        return {
            "forward": [own + WEIGHTS_MOVED["forward"] * weights for own, weights in zip(forward, moved, strict=True)],
            "backward": [
                times * own + (WEIGHTS_MOVED["backward"] + self.recompute) * weights
                for own, weights in zip(forward, moved, strict=True)
            ],
        }

    def _hop_flops(self) -> list[float]:
        """Transfer time, in flops, from every stage to the next."""
        return [
            sum(
                self.overheads.message + self.overheads.sent_byte * self.size * bytes
                for bytes in self.sections[stage.stop - 1].passed_bytes
            )
            for stage in self.ranges[:-1]
        ]


@dataclass(frozen=True)
class Filling:
    """Micro-batches and stages of a pipeline."""

    number: int
    """Number of micro-batches."""
    size: int
    """Samples per micro-batch."""
    ranges: tuple[range, ...]
    """Sections of every stage."""


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a pipeline strategy."""

    kind: Kind
    stages_each: int = 1
    """Number of stages per device."""
    given: int | None = None
    """Number of micro-batches given by the user."""
    cut: str = ""
    """Modules that begin a stage, as in `Pipeline.cut`."""
    recompute: bool = False
    """Activations are recomputed for backward."""


def filling_of(options: PipelineOptions, footprint: Footprint, devices: int, batch: int, backend: Backend) -> Filling:
    """Choose micro-batches and stages.

    The number of micro-batches is the one given by the user or chosen by the engine before. Otherwise it is the number
    with the shortest estimated step among those whose memory fits.
    """
    norms = footprint.norms_batches
    if not options.cut:
        check_stages(footprint.sections, devices * options.stages_each)
    if options.given:
        choices = [given_microbatches(options.given, batch, devices, options.kind)]
    elif footprint.microbatches:
        choices = [
            Microbatches(footprint.microbatches, max(least_samples(batch, norms), -(-batch // footprint.microbatches)))
        ]
    elif not footprint.sections or footprint.exported or devices == 1:
        choices = [without_costs(batch, devices, options.kind, norms_batches=norms)]
    else:
        choices = choices_for(batch, devices, options.kind, norms_batches=norms)
    overheads = OVERHEADS[footprint.on_gpu or backend == "nccl", backend]
    return _best_filling(
        options, footprint.sections, devices, tuple(choices), footprint.room_bytes, footprint.state_copies, overheads
    )


@lru_cache(maxsize=1024)
def _best_filling(
    options: PipelineOptions,
    sections: tuple[Section, ...],
    devices: int,
    choices: tuple[Microbatches, ...],
    room_bytes: int | None,
    state_copies: int,
    overheads: Overheads,
) -> Filling:
    trials = [_Trial(options, sections, devices, choice, room_bytes, state_copies) for choice in choices]
    if len(trials) > 1 and room_bytes is not None:
        room = max(room_bytes, min(trial.held_bytes for trial in trials))
        trials = [trial for trial in trials if trial.held_bytes <= room]
    best = min(trials, key=lambda trial: trial.step_flops(overheads)) if len(trials) > 1 else trials[0]
    return Filling(*best.microbatches, best.ranges)


class _Trial:
    """A candidate number of micro-batches with its stages, memory and estimated step time."""

    def __init__(
        self,
        options: PipelineOptions,
        sections: Sequence[Section],
        devices: int,
        microbatches: Microbatches,
        room_bytes: int | None,
        state_copies: int,
    ) -> None:
        self.options, self.sections, self.devices = options, sections, devices
        self.microbatches, self.copies = microbatches, MODEL_COPIES + state_copies
        self.schedule = schedule_of(options.kind, devices, options.stages_each, microbatches.number)
        under_way = most_under_way(self.schedule, devices * options.stages_each)
        self.samples = [microbatches.size * (1 if options.recompute else most) for most in under_way]
        room = None if room_bytes is None else room_bytes // options.stages_each
        self.ranges = tuple(stage_ranges(sections, self.samples, options.cut, room, state_copies))

    @property
    def held_bytes(self) -> int:
        """Bytes on the fullest device: model state, kept activations and receive buffers of its stages."""
        held = [0] * self.devices
        arriving = self.microbatches.number * self.microbatches.size
        for stage, (within, samples) in enumerate(zip(self.ranges, self.samples, strict=True)):
            own = self.sections[within.start : within.stop]
            passed = self.sections[within.start - 1].passed_bytes if within.start else ()
            returned = own[-1].returned_bytes if within.stop < len(self.sections) else ()
            held[stage % self.devices] += (
                sum(self.copies * section.trained_bytes + section.frozen_bytes for section in own)
                + samples * sum(section.kept_bytes for section in own)
                + arriving * (sum(passed) + sum(returned))
            )
        return max(held)

    def step_flops(self, overheads: Overheads) -> float:
        step = StepTime(self.sections, self.ranges, self.microbatches.size, overheads, self.options.recompute)
        return step.flops(self.schedule)
