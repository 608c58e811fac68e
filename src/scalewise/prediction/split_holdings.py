"""What ranks hold that have a part of the model each: stages, parts of layers, shards."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from scalewise.plan import Section
from scalewise.prediction.held import Held, LayerMemory, Layers, Run
from scalewise.strategies.cuts import Cut
from scalewise.strategies.microbatches import microbatch_size, microbatches_for
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.schedules import Work, schedule_of
from scalewise.strategies.stage_cuts import stage_ranges
from scalewise.strategies.units import units_of


def held_of_stages(
    rank: int, run: Run, layers: Layers, size: int, work: Sequence[Work], ranges: Sequence[range], recompute: bool
) -> Held:
    """A rank's stages, of which it works through `work`, micro-batches of `size` at a time.

    What arrives has its place for every micro-batch, on the host where that is in between; gradients of the last one
    stay until they are sent. Those that arrive for the one at work are among what its layers need.
    """
    sections = run.footprint.sections
    homes = [number for number in range(len(ranges)) if number % run.devices == rank]
    within = _sections_of(layers, sections)
    chosen = {at for number in homes for at in ranges[number]}
    own = tuple(layer for layer, at in zip(layers, within, strict=True) if at in chosen or not sections)
    count = sum(each.phase == "forward" and each.stage == homes[0] for each in work)
    in_flight = _most_in_flight(work)
    messages = 0
    for number in homes:
        first, last = ranges[number].start, ranges[number].stop - 1
        if first:
            arriving = size * sum(sections[first - 1].passed_bytes)
            messages += (in_flight if run.through_host else count + (count > 1)) * arriving
        if last + 1 < len(sections) and not run.through_host:
            messages += (count - 1) * size * sum(sections[last].returned_bytes)
    ends = 0 in homes or len(ranges) - 1 in homes
    return Held(
        own,
        run.inputs(count * size) if ends else 0,
        gradients="stay" if count > 1 else "anew",
        buffer_bytes=messages,
        in_flight=1 if recompute else max(1, -(-in_flight // len(homes))),
    )


def _sections_of(layers: Layers, sections: Sequence[Section]) -> list[int]:
    """Where each layer is: in the section that its path begins with, else where that many weights have passed; the loss
    is in the last."""
    ends = list(accumulate(section.parameter_bytes for section in sections))
    found, at, passed = [], 0, 0
    for layer in layers:
        path = f"{layer.module}."
        named = [number for number, section in enumerate(sections) if path.startswith(f"{section.name}.")]
        passed += sum(layer.parameters)
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
    ranges = stage_ranges(run.footprint.sections, run.devices, run.batch, cut)
    work = schedule_of("gpipe", run.devices, 1, 1)[rank]
    held = held_of_stages(rank, run, layers, -(-run.batch // run.accumulate), work, ranges, recompute=False)
    return replace(held, gradients="stay" if run.accumulate > 1 else "anew")


def held_of_pipeline(strategy: Pipeline, rank: int, run: Run, layers: Layers) -> Held:
    ranges = stage_ranges(run.footprint.sections, run.devices * strategy.stages_each, run.batch, strategy.cut)
    count = microbatches_for(run.batch, run.devices, strategy.schedule, strategy.microbatches)
    work = schedule_of(strategy.schedule, run.devices, strategy.stages_each, count)[rank]
    size = microbatch_size(run.batch, count)
    return held_of_stages(rank, run, layers, size, work, ranges, strategy.checkpoint)


def held_of_parts(cuts: dict[str, Cut], part: int, run: Run, layers: Layers) -> Held:
    """Cut layers hold a part of their weights; what lies between columns and rows is in parts too. What rows put out is
    there twice: before and after it is added up."""
    samples = -(-run.batch // run.accumulate)
    added_up = {
        matrix.name: samples * matrix.output_bytes
        for matrix in run.footprint.matrices
        if matrix.name in cuts and cuts[matrix.name].role == "rows"
    }
    own: list[LayerMemory] = []
    inside = 1.0
    for layer in layers:
        cut = cuts.get(layer.module)
        share = cut.sizes[part] / sum(cut.sizes) if cut else 1.0
        if cut and cut.role == "columns":
            inside = share
        kept = 1.0 if cut and cut.role == "rows" else inside
        own.append(
            replace(
                layer,
                parameters=tuple(round(size * share) for size in layer.parameters),
                kept_bytes=round(layer.kept_bytes * kept) + added_up.get(layer.module, 0),
            )
        )
        if cut and cut.role == "rows":
            inside = 1.0
    return Held(tuple(own), run.inputs(samples))


def held_of_shards(run: Run, layers: Layers) -> Held:
    """A unit's weights are gathered while it works: first in one piece, then as they are. In backward the next unit's
    piece is there already, and gradients are made, and laid out to be sent, before any shard of them is left."""
    sizes: dict[str, int] = {}
    units = [next(iter(units_of([f"{layer.module}.weight"])), "") for layer in layers]
    for unit, layer in zip(units, layers, strict=True):
        sizes[unit] = sizes.get(unit, 0) + sum(layer.parameters)
    gathered = {unit: size for unit, size in sizes.items() if size}
    before = {following: unit for unit, following in pairwise(gathered)}
    last = gathered[next(reversed(gathered))] if gathered else 0
    own = []
    for unit, layer in zip(units, layers, strict=True):
        here, ahead = gathered.get(unit, 0), gathered.get(before.get(unit, ""), 0)
        own.append(
            replace(
                layer,
                parameters=tuple(-(-size // run.devices) for size in layer.parameters),
                forward_bytes=layer.forward_bytes + (2 * here + ahead if here else last),
                backward_bytes=layer.backward_bytes + (2 * here + ahead if here else last),
            )
        )
    return Held(tuple(own), run.inputs(run.share))
