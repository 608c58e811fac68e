"""Memory of ranks that hold stages, or parts of split layers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from scalewise.strategies.plan import Section
from scalewise.strategies.rank_memory import (
    BytesByLayer,
    LayerMemories,
    LayerMemory,
    RankMemory,
    StagePass,
    TrainingRun,
    weights_of,
)
from scalewise.strategies.stage_plan import Work, most_under_way
from scalewise.strategies.tensor_splitting import LayerSplit


@dataclass(frozen=True)
class _Share:
    """Fractions of one layer's bytes that a rank holds."""

    weights: float
    output: float
    input: float


def memory_of_part(
    layer_splits: dict[str, LayerSplit], part: int, run: TrainingRun, layers: LayerMemories
) -> RankMemory:
    """Memory of the rank that holds one part of each split layer.

    Activations, and their gradients, are split between a layer split by columns and the next layer split by rows. The
    output of a layer split by rows, and the input gradient of one split by columns, exists twice during its all-reduce.
    """
    samples = run.part_of_batch
    matrices = {matrix.name: matrix for matrix in run.footprint.matrices if matrix.name in layer_splits}
    shares = _shares_of(layer_splits, part, layers)
    output_shares, input_shares = [share.output for share in shares], [share.input for share in shares]
    own = []
    for at, (layer, share) in enumerate(zip(layers, shares, strict=True)):
        added_forward = added_backward = 0
        if matrix := matrices.get(layer.module):
            rows = layer_splits[matrix.name].role == "rows"
            added_forward = samples * matrix.output_bytes if rows else 0
            added_backward = samples * matrix.input_bytes if not rows and matrix.input_learns else 0
        # Backward of a layer allocates the gradient of its input.
        forward = _split_bytes(layer.forward_bytes, layer.forward_by_layer, at, output_shares, share)
        backward = _split_bytes(layer.backward_bytes, layer.backward_by_layer, at, input_shares, share)
        own.append(
            replace(
                layer,
                parameters=tuple(round(size * share.weights) for size in layer.parameters),
                frozen_bytes=round(layer.frozen_bytes * share.weights),
                kept_bytes=round(layer.kept_bytes * share.output),
                forward_bytes=forward + added_forward,
                backward_bytes=backward + added_backward,
                workspace_bytes=(
                    round(layer.workspace_bytes[0] * share.weights),
                    round(layer.workspace_bytes[1] * share.weights),
                ),
            )
        )
    return RankMemory(tuple(own), run.inputs(samples))


def _shares_of(layer_splits: dict[str, LayerSplit], part: int, layers: LayerMemories) -> list[_Share]:
    shares = []
    between = 1.0
    for layer in layers:
        if not (split := layer_splits.get(layer.module)):
            shares.append(_Share(1.0, between, between))
            continue
        own = split.sizes[part] / sum(split.sizes)
        columns = split.role == "columns"
        between = own if columns else 1.0
        shares.append(_Share(own, between, 1.0 if columns else own))
    return shares


def _split_bytes(whole: int, by_layer: BytesByLayer, at: int, shares: Sequence[float], own: _Share) -> int:
    """Bytes of `whole` on this rank. `by_layer` lists those allocated by other layers, which are split as these are."""
    rest = whole - sum(nbytes for _, nbytes in by_layer)
    others = sum(nbytes * (own.output if by == at else shares[by]) for by, nbytes in by_layer)
    return round(rest * shares[at] + others)


@dataclass(frozen=True)
class _Stage:
    """One of the stages of a rank."""

    layers: range
    """Positions among the layers of the rank."""
    loss: range
    """Positions of the loss; empty except in the last stage."""
    trained_bytes: int
    kept_bytes: int
    """Bytes kept for a micro-batch between its forward and its backward."""
    output_bytes: int
    """Output bytes of a micro-batch."""
    sent_bytes: int = 0
    """Bytes of sent tensors of a finished micro-batch that are kept until the end of the step."""
    sent_of: range = range(0)
    """Micro-batches whose `sent_bytes` are kept."""


def memory_of_stages(
    rank: int,
    run: TrainingRun,
    layers: LayerMemories,
    size: int,
    work: Sequence[Work],
    ranges: Sequence[range],
    *,
    recompute: bool = False,
    keeps_sent: bool = False,
) -> RankMemory:
    """Memory of a rank that runs the passes in `work` through its stages, with micro-batches of `size` samples.

    Every micro-batch has a buffer for its received activations and gradients, in host memory if messages go through
    it.

    Args:
        recompute: forward runs again before backward.
        keeps_sent: sent tensors are kept until the end of the step, as in all schedules of torch except 1f1b, which
            keeps those of one micro-batch.
    """
    sections = run.footprint.sections
    own_stages = [number for number in range(len(ranges)) if number % run.devices == rank]
    section_of = _sections_of(layers, sections)
    count = len({item.microbatch for item in work})
    in_flight = most_under_way([work], len(ranges))
    own: list[LayerMemory] = []
    stages: dict[int, _Stage] = {}
    messages = returned = 0
    for number in own_stages:
        first, last = ranges[number].start, ranges[number].stop - 1
        positions = [at for at, section in enumerate(section_of) if first <= section <= last]
        stage_layers = _layers_of_stage(layers, positions) if sections else list(layers)
        input_bytes = size * sum(sections[first - 1].passed_bytes) if first else 0
        input_gradient_bytes = size * sum(sections[first - 1].returned_bytes) if first else 0
        output_bytes = size * (sum(sections[last].passed_bytes) if sections else run.footprint.output_bytes)
        output_gradient_bytes = size * sum(sections[last].returned_bytes) if last + 1 < len(sections) else 0
        sent = output_bytes if last + 1 < len(sections) else 0
        all_sent_kept = count > 1 and keeps_sent and not run.through_host
        stage = _stage_of(stage_layers, len(own), output_bytes, recompute)
        if all_sent_kept:
            stage = replace(stage, sent_bytes=input_gradient_bytes + sent, sent_of=range(count))
        elif count > 1 and not run.on_gpu:
            stage = replace(stage, sent_bytes=sent, sent_of=_kept_by_request(work, number))
        stages[number] = stage
        own += stage_layers
        messages += (in_flight[number] if run.through_host else count) * input_bytes
        if count > 1 and not run.through_host:
            messages += count * output_gradient_bytes + (0 if all_sent_kept else input_gradient_bytes)
        else:
            returned = max(returned, output_gradient_bytes)
    first_or_last = 0 in own_stages or len(ranges) - 1 in own_stages
    return RankMemory(
        tuple(own),
        run.inputs(count * size) if first_or_last else 0,
        buffer_bytes=messages,
        ahead_bytes=run.inputs(count * size) - run.resident_bytes if first_or_last else 0,
        returned_bytes=returned,
        passes=_passes(work, stages, recompute),
    )


def _kept_by_request(work: Sequence[Work], stage: int) -> range:
    """Micro-batch whose output is kept in 1f1b: the last one sent before the first backward.

    torch keeps the request of that send, and gloo keeps the request's tensor, until the last forward ends.
    """
    own = [item.phase for item in work if item.stage == stage]
    ahead = own.index("backward")
    return range(max(ahead - 2, 0), ahead - 1)


def _stage_of(layers: Sequence[LayerMemory], start: int, output_bytes: int, recompute: bool) -> _Stage:
    """Stage of `layers`, the first of which is at `start`.

    With `recompute`, only the output and the activations of the loss, which is not recomputed, are kept.
    """
    losses = [at for at, layer in enumerate(layers) if not layer.module]
    loss = range(start + losses[0], start + len(layers)) if losses else range(0)
    loss_kept = sum(layers[at].kept_bytes for at in losses)
    return _Stage(
        range(start, start + len(layers)),
        loss,
        weights_of(tuple(layers)),
        output_bytes + loss_kept if recompute else sum(layer.kept_bytes for layer in layers),
        output_bytes,
    )


def _passes(work: Sequence[Work], stages: Mapping[int, _Stage], recompute: bool) -> tuple[StagePass, ...]:
    """Distinct passes, each at the time when other micro-batches keep the most bytes."""
    in_flight: Counter[int] = Counter()
    complete: dict[int, int] = {}
    sent = 0
    largest: dict[StagePass, int] = {}
    for item in work:
        stage, is_backward = stages[item.stage], item.phase == "backward"
        if is_backward:
            in_flight[item.stage] -= 1
        beside = sent + sum(number * stages[at].kept_bytes for at, number in in_flight.items())
        gradients, adds = sum(complete.values()), is_backward and item.stage in complete
        passes = [(StagePass(stage.layers, item.phase, 0, gradients, adds), beside)]
        if recompute:
            passes = _recomputed_passes(stage, is_backward, beside, gradients, adds)
        for stage_pass, beside_bytes in passes:
            largest[stage_pass] = max(largest.get(stage_pass, 0), beside_bytes)
        if is_backward:
            complete[item.stage] = stage.trained_bytes
            sent += stage.sent_bytes if item.microbatch in stage.sent_of else 0
        else:
            in_flight[item.stage] += 1
    return tuple(replace(stage_pass, beside_bytes=beside_bytes) for stage_pass, beside_bytes in largest.items())


def _recomputed_passes(
    stage: _Stage, is_backward: bool, beside: int, gradients: int, adds: bool
) -> list[tuple[StagePass, int]]:
    """Passes of a stage with recomputation. Backward consists of backward of the loss, a second forward, and backward.

    During the second forward, the output of the first forward and its gradient are in memory.
    """
    loss, body = stage.loss, range(stage.layers.start, stage.loss.start) if stage.loss else stage.layers
    beside += stage.output_bytes
    if not is_backward:
        return [(StagePass(loss, "forward", 0, gradients), beside)]
    gradient_bytes = stage.output_bytes if loss else 0
    return [
        (StagePass(loss, "backward", 0, gradients, adds), beside),
        (StagePass(body, "forward", 0, gradients), beside + gradient_bytes),
        (StagePass(body, "backward", 0, gradients, adds), beside),
    ]


def _layers_of_stage(layers: LayerMemories, positions: Sequence[int]) -> list[LayerMemory]:
    """Layers of one stage, without the bytes that layers of other stages allocate.

    The output of the last layer is kept for sending, and exists during the whole backward.
    """
    if not positions:
        return []
    first, last = positions[0], positions[-1]
    own = []
    for at in positions:
        layer = layers[at]
        forward = sum(nbytes for maker, nbytes in layer.forward_by_layer if not first <= maker <= last)
        backward = sum(nbytes for maker, nbytes in layer.backward_by_layer if not first <= maker <= last)
        passed = layer.passed_bytes if at == last else 0
        later_output = sum(nbytes for maker, nbytes in layers[last].output_by_layer if at < maker)
        if at in dict(layers[last].output_by_layer):
            later_output += layer.freed_output_bytes
        if forward or backward or passed or later_output:
            layer = replace(
                layer,
                kept_bytes=layer.kept_bytes + passed,
                forward_bytes=max(0, layer.forward_bytes - forward - passed),
                backward_bytes=layer.backward_bytes - backward + later_output,
            )
        own.append(layer)
    return own


def _sections_of(layers: LayerMemories, sections: Sequence[Section]) -> list[int]:
    """Section of each layer: the one whose name starts its path, otherwise the one at its cumulative parameter bytes.

    The loss is in the last section.
    """
    ends = list(accumulate(section.parameter_bytes for section in sections))
    number_of = {section.name: number for number, section in enumerate(sections)}
    numbers, at, cumulative = [], 0, 0
    for layer in layers:
        prefixes = accumulate(layer.module.split("."), lambda path, name: f"{path}.{name}")
        named = [number_of[prefix] for prefix in prefixes if prefix in number_of]
        cumulative += sum(layer.parameters) + sum(nbytes for nbytes, _ in layer.frozen)
        by_weight = min(bisect_left(ends, cumulative), len(sections) - 1)
        at = len(sections) - 1 if not layer.module else max(named, default=max(at, by_weight))
        numbers.append(at)
    return numbers
