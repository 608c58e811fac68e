"""Each strategy's answer to what its ranks hold; `HOLDINGS` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from scalewise.prediction.held import Held, Layers, Run, weights_of
from scalewise.prediction.part_holdings import held_of_parts
from scalewise.prediction.shard_holdings import held_of_shards
from scalewise.prediction.stage_holdings import filling_in, held_of_layers, held_of_pipeline
from scalewise.strategies.cuts import Cut
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.strategy import Strategy
from scalewise.strategies.tensor import Tensor


@dataclass(frozen=True)
class Holding:
    """How to find what a rank holds."""

    held: Callable[[Any, int, Run, Layers], Held]
    """(strategy, rank, run, layers at `samples`)."""
    samples: Callable[[Any, Run], int] = lambda _, run: -(-run.share // run.accumulate)
    """That a rank works on at a time."""


def samples_at_a_time(strategy: Strategy, run: Run) -> int:
    return HOLDINGS[strategy.name].samples(strategy, run)


def cuts_by(strategy: Strategy, run: Run) -> dict[str, Cut]:
    """Layers of which a device has a part."""
    if isinstance(strategy, Hybrid):
        return strategy.as_tensor.cuts(run.footprint.matrices, strategy.inside) if strategy.stages is None else {}
    return strategy.cuts(run.footprint.matrices, run.devices) if isinstance(strategy, Tensor) else {}


def held_by(strategy: Strategy, rank: int, run: Run, layers: Layers) -> Held:
    """`layers` as they are at `samples_at_a_time`."""
    return HOLDINGS[strategy.name].held(strategy, rank, run, layers)


def _single(_: Strategy, __: int, run: Run, layers: Layers) -> Held:
    return Held(layers, _inputs(run), gradients="stay" if run.accumulate > 1 else "anew")


def _mirrored(strategy: Any, _: int, run: Run, layers: Layers) -> Held:
    """DDP's buckets are where gradients stay. PowerSGD also remembers what it left out."""
    extra = {"fp16": 0.5, "powersgd": 1.0}.get(getattr(strategy, "compress", ""), 0.0)
    return Held(layers, _inputs(run), gradients="stay", buffer_bytes=round(extra * weights_of(layers)))


def _data_parallel(strategy: Any, rank: int, run: Run, layers: Layers) -> Held:
    """The default device has the whole batch, the loss of all of it, and room for everyone's gradients; the others have
    one place to send theirs from, and no loss."""
    if strategy.engine == "threads":
        return Held(layers, run.inputs(run.batch if rank == 0 else run.share), updates=rank == 0)
    weights, output_bytes = weights_of(layers), run.footprint.output_bytes
    *model, loss = layers
    if rank:
        received = weights + run.share * output_bytes
        return Held(tuple(model), run.share * run.footprint.input_bytes, updates=False, buffer_bytes=received)
    whole, times = run.batch * output_bytes, run.batch / run.share
    # All outputs lie in one piece from the loss to the update, and so do their gradients.
    model = [replace(layer, backward_bytes=layer.backward_bytes + whole) for layer in model]
    loss = replace(loss, kept_bytes=round(loss.kept_bytes * times), backward_bytes=round(loss.backward_bytes * times))
    return Held((*model, loss), run.inputs(run.batch), buffer_bytes=(run.devices - 1) * weights + whole)


def _served(_: Strategy, __: int, run: Run, layers: Layers) -> Held:
    """Gradients are gathered for sending where they leave from, and weights arrive, on the host."""
    if run.on_gpu:
        return Held(layers, _inputs(run), updates=False, gradients="leave")
    return Held(layers, _inputs(run), updates=False, gradients="stay", buffer_bytes=weights_of(layers))


def _central_storage(strategy: Any, _: int, run: Run, layers: Layers) -> Held:
    """What is read now, and next: after it in forward, before it in backward."""
    sizes = [sum(layer.parameters) for layer in layers]
    told = zip(run.footprint.parameter_names, run.footprint.read_again, strict=False)
    again = {name.rpartition(".")[0] for name, read in told if read}
    known = bool(run.footprint.read_again)
    sizes_again = [size if not known or layer.module in again else 0 for size, layer in zip(sizes, layers, strict=True)]
    forward = _lent(sizes, strategy.prefetch)
    backward = _lent(sizes_again[::-1], strategy.prefetch)[::-1]
    return Held(
        layers,
        _inputs(run),
        updates=False,
        gradients="leave",
        lent_bytes=tuple(forward),
        lent_again_bytes=tuple(backward),
    )


def _lent(sizes: list[int], ahead: int) -> list[int]:
    """While each works: its own, and those of the next few that have any."""
    return [size + sum([other for other in sizes[at + 1 :] if other][:ahead]) for at, size in enumerate(sizes)]


def _inputs(run: Run) -> int:
    return run.inputs(-(-run.share // run.accumulate))


def _microbatch(strategy: Any, run: Run) -> int:
    return filling_in(strategy, run).size


def _tensor(strategy: Any, rank: int, run: Run, layers: Layers) -> Held:
    return held_of_parts(strategy.cuts(run.footprint.matrices, run.devices), rank, run, layers)


def _hybrid(strategy: Any, rank: int, run: Run, layers: Layers) -> Held:
    """A group holds a model between them; beside their parts is what adds up the gradients of all groups, if there are
    several."""
    inside = _inside(strategy, run)
    part, several = rank % strategy.inside, run.devices > strategy.inside
    if strategy.stages is None:
        held = _tensor(strategy.as_tensor, part, inside, layers)
        return replace(held, gradients="stay") if several else held
    held = held_of_pipeline(strategy.as_pipeline, part, inside, layers)
    return replace(held, flat_bytes=weights_of(held.layers)) if several else held


def _hybrid_samples(strategy: Any, run: Run) -> int:
    inside = _inside(strategy, run)
    return -(-inside.batch // run.accumulate) if strategy.stages is None else _microbatch(strategy.as_pipeline, inside)


def _inside(strategy: Any, run: Run) -> Run:
    """One group of its own."""
    return replace(run, devices=strategy.inside, batch=-(-run.batch * strategy.inside // run.devices))


HOLDINGS: dict[str, Holding] = {
    "single": Holding(_single),
    "data-parallel": Holding(_data_parallel),
    "mirrored": Holding(_mirrored),
    "ring": Holding(_mirrored),
    "parameter-server": Holding(_served),
    "parameter-server-async": Holding(_served),
    "central-storage": Holding(_central_storage),
    "layers": Holding(held_of_layers, lambda _, run: -(-run.batch // run.accumulate)),
    "pipeline": Holding(held_of_pipeline, _microbatch),
    "tensor": Holding(_tensor, lambda _, run: -(-run.batch // run.accumulate)),
    "hybrid": Holding(_hybrid, _hybrid_samples),
    "sharded": Holding(lambda _, rank, run, layers: held_of_shards(rank, run, layers)),
}
