"""What ranks hold that have stages of the model each."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from scalewise.plan import Section
from scalewise.prediction.held import Held, LayerMemory, Layers, Run, Turn, weights_of
from scalewise.strategies.filling import Filling
from scalewise.strategies.layers import Layers as OneByOne
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.schedules import Work, most_under_way, schedule_of


class Conduct(NamedTuple):
    """How a rank goes about its stages."""

    recompute: bool = False
    """Each once more for its backward."""
    sent_stays: bool = False
    """Until the step is over, as torch's schedules have it but for 1f1b, which keeps one micro-batch's."""


@dataclass(frozen=True)
class _Stage:
    """One of a rank's stages."""

    layers: range
    """Of those that the rank holds."""
    loss: range
    """Of those, the loss: the last stage's."""
    trained_bytes: int
    rests_bytes: int
    """Of a micro-batch that is neither in forward nor in backward."""
    put_out_bytes: int
    sent_bytes: int = 0
    """Of a micro-batch that is through, what stays until the step is over."""
    sent_of: range = range(0)
    """Micro-batches of which it does."""


def held_of_stages(
    rank: int, run: Run, layers: Layers, size: int, work: Sequence[Work], ranges: Sequence[range], how: Conduct
) -> Held:
    """A rank's stages, of which it works through `work`, micro-batches of `size` at a time.

    What arrives, forward and backward, has its place for every micro-batch, on the host where that is in between; the
    gradients of the one before stay until they are sent, or all until the step is over. A single batch's gradients are
    there from when they come.
    """
    sections = run.footprint.sections
    homes = [number for number in range(len(ranges)) if number % run.devices == rank]
    within = _sections_of(layers, sections)
    count = len({each.microbatch for each in work})
    in_flight = most_under_way([work], len(ranges))
    own: list[LayerMemory] = []
    stages: dict[int, _Stage] = {}
    messages = returned = 0
    for number in homes:
        first, last = ranges[number].start, ranges[number].stop - 1
        mine = [at for at, section in enumerate(within) if first <= section <= last]
        alone = _stage_alone(layers, mine) if sections else list(layers)
        came = size * sum(sections[first - 1].passed_bytes) if first else 0
        goes_back = size * sum(sections[first - 1].returned_bytes) if first else 0
        put_out = size * (sum(sections[last].passed_bytes) if sections else run.footprint.output_bytes)
        coming = size * sum(sections[last].returned_bytes) if last + 1 < len(sections) else 0
        sent = put_out if last + 1 < len(sections) else 0
        stays = count > 1 and how.sent_stays and not run.through_host
        stage = _stage_of(alone, len(own), put_out, how.recompute)
        if stays:
            stage = replace(stage, sent_bytes=goes_back + sent, sent_of=range(count))
        elif count > 1 and not run.on_gpu:
            stage = replace(stage, sent_bytes=sent, sent_of=_waited_for(work, number))
        stages[number] = stage
        own += alone
        messages += (in_flight[number] if run.through_host else count) * came
        if count > 1 and not run.through_host:
            messages += count * coming + (0 if stays else goes_back)
        else:
            returned = max(returned, coming)
    ends = 0 in homes or len(ranges) - 1 in homes
    return Held(
        tuple(own),
        run.inputs(count * size) if ends else 0,
        buffer_bytes=messages,
        ahead_bytes=run.inputs(count * size) - run.resident_bytes if ends else 0,
        returned_bytes=returned,
        turns=_turns(work, stages, how.recompute),
    )


def _waited_for(work: Sequence[Work], stage: int) -> range:
    """In 1f1b: the last that is sent by itself, before backward begins. torch keeps the message, and gloo with it what
    was sent, until there is nothing left to go forward."""
    own = [each.phase for each in work if each.stage == stage]
    ahead = own.index("backward")
    return range(max(ahead - 2, 0), ahead - 1)


def _stage_of(alone: Sequence[LayerMemory], start: int, put_out: int, recompute: bool) -> _Stage:
    """Computed once more for backward it keeps only what it put out, and the loss, which is computed once."""
    losses = [at for at, layer in enumerate(alone) if not layer.module]
    loss = range(start + losses[0], start + len(alone)) if losses else range(0)
    loss_kept = sum(alone[at].kept_bytes for at in losses)
    return _Stage(
        range(start, start + len(alone)),
        loss,
        weights_of(tuple(alone)),
        put_out + loss_kept if recompute else sum(layer.kept_bytes for layer in alone),
        put_out,
    )


def _turns(work: Sequence[Work], stages: Mapping[int, _Stage], recompute: bool) -> tuple[Turn, ...]:
    """Those that differ, each when the most is beside it."""
    under_way: Counter[int] = Counter()
    complete: dict[int, int] = {}
    sent = 0
    found: dict[Turn, int] = {}
    for each in work:
        stage, back = stages[each.stage], each.phase == "backward"
        if back:
            under_way[each.stage] -= 1
        beside = sent + sum(number * stages[at].rests_bytes for at, number in under_way.items())
        gradients, adds = sum(complete.values()), back and each.stage in complete
        turns = [(Turn(stage.layers, each.phase, 0, gradients, adds), beside)]
        if recompute:
            turns = _recomputed(stage, back, beside, gradients, adds)
        for turn, most in turns:
            found[turn] = max(found.get(turn, 0), most)
        if back:
            complete[each.stage] = stage.trained_bytes
            sent += stage.sent_bytes if each.microbatch in stage.sent_of else 0
        else:
            under_way[each.stage] += 1
    return tuple(replace(turn, beside_bytes=most) for turn, most in found.items())


def _recomputed(stage: _Stage, back: bool, beside: int, gradients: int, adds: bool) -> list[tuple[Turn, int]]:
    """Backward of the loss, then the stage forward once more, beside what it put out when it went forward first and
    the gradient of that, then backward."""
    loss, body = stage.loss, range(stage.layers.start, stage.loss.start) if stage.loss else stage.layers
    beside += stage.put_out_bytes
    if not back:
        return [(Turn(loss, "forward", 0, gradients), beside)]
    came = stage.put_out_bytes if loss else 0
    return [
        (Turn(loss, "backward", 0, gradients, adds), beside),
        (Turn(body, "forward", 0, gradients), beside + came),
        (Turn(body, "backward", 0, gradients, adds), beside),
    ]


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
        if at in dict(layers[last].put_out):
            behind += layer.gone_bytes
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


def held_of_layers(strategy: OneByOne, rank: int, run: Run, layers: Layers) -> Held:
    """Parts of a batch that is accumulated go through one after the other, each in the place of the one before."""
    samples = -(-run.batch // run.accumulate)
    ranges = strategy.ranges(run.footprint, run.devices, samples)
    [there, back] = schedule_of("gpipe", run.devices, 1, 1)[rank]
    work = [there, back] * (2 if run.accumulate > 1 else 1)
    return held_of_stages(rank, run, layers, samples, work, ranges, Conduct())


def held_of_pipeline(strategy: Pipeline, rank: int, run: Run, layers: Layers) -> Held:
    filled = filling_in(strategy, run)
    work = schedule_of(strategy.schedule, run.devices, strategy.stages_each(run.devices), filled.number)[rank]
    how = Conduct(strategy.checkpoint, sent_stays=strategy.schedule != "1f1b")
    return held_of_stages(rank, run, layers, filled.size, work, filled.ranges, how)


def filling_in(strategy: Pipeline, run: Run) -> Filling:
    return strategy.filling(run.footprint, run.devices, run.batch, run.backend)
