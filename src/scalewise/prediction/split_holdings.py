"""What ranks hold that have a part of the model each: stages, parts of layers, shards."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from scalewise.plan import Section
from scalewise.prediction.held import Held, LayerMemory, Layers, Made, Run
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

    What arrives, forward and backward, has its place for every micro-batch, on the host where that is in between; the
    gradients of the one before stay until they are sent. A single batch's gradients are there from when they come.
    """
    sections = run.footprint.sections
    homes = [number for number in range(len(ranges)) if number % run.devices == rank]
    within = _sections_of(layers, sections)
    count = sum(each.phase == "forward" and each.stage == homes[0] for each in work)
    in_flight = _most_in_flight(work)
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
        in_flight=1 if recompute else max(1, -(-in_flight // len(homes))),
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


@dataclass(frozen=True)
class _Share:
    """A part's, of one layer's bytes."""

    weights: float
    put_out: float
    taken_in: float


def held_of_parts(cuts: dict[str, Cut], part: int, run: Run, layers: Layers) -> Held:
    """Cut layers hold a part of their weights; what lies between columns and rows is in parts too, and so is its
    gradient. What rows put out, and the gradient of what columns take in, is there twice while it is added up."""
    samples = -(-run.batch // run.accumulate)
    matrices = {matrix.name: matrix for matrix in run.footprint.matrices if matrix.name in cuts}
    shares = _shares_of(cuts, part, layers)
    put_out, taken_in = [share.put_out for share in shares], [share.taken_in for share in shares]
    own = []
    for at, (layer, share) in enumerate(zip(layers, shares, strict=True)):
        added_forward = added_backward = 0
        if matrix := matrices.get(layer.module):
            rows = cuts[matrix.name].role == "rows"
            added_forward = samples * matrix.output_bytes if rows else 0
            added_backward = samples * matrix.input_bytes if not rows and matrix.input_learns else 0
        # What a layer makes in backward is the gradient of what it takes in.
        forward = _in_parts(layer.forward_bytes, layer.forward_of, at, put_out, share, layer.copied_bytes[0])
        backward = _in_parts(layer.backward_bytes, layer.backward_of, at, taken_in, share, layer.copied_bytes[1])
        own.append(
            replace(
                layer,
                parameters=tuple(round(size * share.weights) for size in layer.parameters),
                kept_bytes=round(layer.kept_bytes * share.put_out),
                forward_bytes=forward + added_forward,
                backward_bytes=backward + added_backward,
            )
        )
    return Held(tuple(own), run.inputs(samples))


def _shares_of(cuts: dict[str, Cut], part: int, layers: Layers) -> list[_Share]:
    shares = []
    between = 1.0
    for layer in layers:
        if not (cut := cuts.get(layer.module)):
            shares.append(_Share(1.0, between, between))
            continue
        own = cut.sizes[part] / sum(cut.sizes)
        columns = cut.role == "columns"
        between = own if columns else 1.0
        shares.append(_Share(own, between, 1.0 if columns else own))
    return shares


def _in_parts(whole: int, made: Made, at: int, shares: Sequence[float], own: _Share, copied: int) -> int:
    rest = whole - copied - sum(nbytes for _, nbytes in made)
    others = sum(nbytes * (own.put_out if by == at else shares[by]) for by, nbytes in made)
    return round(rest * shares[at] + others + copied * own.taken_in)


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
