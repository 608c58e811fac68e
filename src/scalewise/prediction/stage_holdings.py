"""What ranks hold that have stages of the model each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from scalewise.plan import Section
from scalewise.prediction.held import Held, LayerMemory, Layers, Run
from scalewise.strategies.microbatches import Microbatches, microbatches_for
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.schedules import Work, schedule_of
from scalewise.strategies.stage_cuts import stage_ranges


def held_of_stages(
    rank: int, run: Run, layers: Layers, size: int, work: Sequence[Work], ranges: Sequence[range], recompute: bool
) -> Held:
    """A rank's stages, of which it works through `work`, micro-batches of `size` at a time.

    What arrives, forward and backward, has its place for every micro-batch, on the host where that is in between; the
    gradients of the one before stay until they are sent. A single batch's gradients are there from when they come.
    A micro-batch that is computed once more for backward keeps what it was given and what it put out.
    """
    sections = run.footprint.sections
    homes = [number for number in range(len(ranges)) if number % run.devices == rank]
    within = _sections_of(layers, sections)
    count = sum(each.phase == "forward" and each.stage == homes[0] for each in work)
    in_flight = _most_in_flight(work)
    under_way = max(1, -(-in_flight // len(homes)))
    own: list[LayerMemory] = [] if sections else list(layers)
    messages = returned = 0
    for number in homes if sections else ():
        own += _stage_alone(layers, [at for at, section in enumerate(within) if section in ranges[number]])
        first, last = ranges[number].start, ranges[number].stop - 1
        if first:
            messages += (in_flight if run.through_host else count) * size * sum(sections[first - 1].passed_bytes)
            if count > 1 and not run.through_host:
                messages += size * sum(sections[first - 1].returned_bytes)
        if last + 1 < len(sections):
            if recompute:
                messages += (under_way - 1) * size * sum(sections[last].passed_bytes)
            coming = size * sum(sections[last].returned_bytes)
            if count > 1 and not run.through_host:
                messages += count * coming
            else:
                returned = max(returned, coming)
    ends = 0 in homes or len(ranges) - 1 in homes
    return Held(
        tuple(own),
        run.inputs(count * size) if ends else 0,
        gradients="stay" if count > 1 else "anew",
        buffer_bytes=messages,
        ahead_bytes=run.inputs(count * size) - run.resident_bytes if ends else 0,
        returned_bytes=returned,
        in_flight=1 if recompute else under_way,
    )


def _stage_alone(layers: Layers, mine: Sequence[int]) -> list[LayerMemory]:
    """Some layers in a row, without what those of other stages made. What the last one puts out is there to be sent,
    and all through backward."""
    if not mine:
        return []
    first, last = mine[0], mine[-1]
    own = []
    for at in mine:
        layer = layers[at]
        forward = sum(nbytes for maker, nbytes in layer.forward_of if not first <= maker <= last)
        backward = sum(nbytes for maker, nbytes in layer.backward_of if not first <= maker <= last)
        passed = layer.passed_bytes if at == last else 0
        behind = sum(nbytes for maker, nbytes in layers[last].put_out if at < maker)
        if forward or backward or passed or behind:
            layer = replace(
                layer,
                kept_bytes=layer.kept_bytes + passed,
                forward_bytes=max(0, layer.forward_bytes - forward - passed),
                backward_bytes=layer.backward_bytes - backward + behind,
            )
        own.append(layer)
    return own


def _sections_of(layers: Layers, sections: Sequence[Section]) -> list[int]:
    """Where each layer is: in the section that its path begins with, else where that many weights have passed; the loss
    is in the last."""
    ends = list(accumulate(section.parameter_bytes for section in sections))
    found, at, passed = [], 0, 0
    for layer in layers:
        path = f"{layer.module}."
        named = [number for number, section in enumerate(sections) if path.startswith(f"{section.name}.")]
        passed += sum(layer.parameters) + sum(nbytes for nbytes, _ in layer.still)
        by_weight = min(bisect_left(ends, passed), len(sections) - 1)
        at = len(sections) - 1 if not layer.module else max(named, default=max(at, by_weight))
        found.append(at)
    return found


def _most_in_flight(work: Sequence[Work]) -> int:
    now = most = 0
    for each in work:
        now += 1 if each.phase == "forward" else -1
        most = max(most, now)
    return most


def held_of_layers(cut: str, rank: int, run: Run, layers: Layers) -> Held:
    known = run.footprint
    ranges = stage_ranges(known.sections, run.devices, run.batch, cut, known.room_bytes)
    work = schedule_of("gpipe", run.devices, 1, 1)[rank]
    held = held_of_stages(rank, run, layers, -(-run.batch // run.accumulate), work, ranges, recompute=False)
    return replace(held, gradients="stay" if run.accumulate > 1 else "anew")


def held_of_pipeline(strategy: Pipeline, rank: int, run: Run, layers: Layers) -> Held:
    known, stages = run.footprint, run.devices * strategy.stages_each
    ranges = stage_ranges(known.sections, stages, run.batch, strategy.cut, known.room_bytes)
    count, size = microbatches_of(strategy, run)
    work = schedule_of(strategy.schedule, run.devices, strategy.stages_each, count)[rank]
    return held_of_stages(rank, run, layers, size, work, ranges, strategy.checkpoint)


def microbatches_of(strategy: Pipeline, run: Run) -> Microbatches:
    return microbatches_for(
        run.batch,
        run.devices,
        strategy.schedule,
        strategy.microbatches,
        norms_batches=run.footprint.norms_batches,
    )
