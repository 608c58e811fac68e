"""Bytes that one device needs for a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from scalewise.clusters.cluster import Cluster
from scalewise.prediction.costs import Costs
from scalewise.prediction.footprint import footprint_of
from scalewise.prediction.held import Held, LayerMemory, Layers, Run, Turn, weights_of
from scalewise.prediction.holdings import held_by, samples_at_a_time
from scalewise.results.profile import ProfileDocument
from scalewise.strategies.strategy import Strategy

OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "momentum": 1, "adagrad": 1}
"""Of the weights, as the optimizer's state; the others keep next to nothing."""


Where = tuple[str, str]
"""A layer's path, and forward or backward."""


@dataclass(frozen=True)
class Memory:
    """What a device's bytes are for, at the moment when they are the most."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    inputs: int = 0
    buffers: int = 0

    @property
    def parts(self) -> dict[str, int]:
        return asdict(self)

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.inputs + self.buffers


def peak_memory(held: Held, optimizer: str = "adam") -> Memory:
    """Of all moments of a step the one with the most: activations go while gradients come.

    activations  ######  ####    ##
    gradients            ##      ####    ######
                 loss    backward        update
    """
    return _memory_at(max(_moments(held), key=lambda moment: moment.bytes), held, optimizer)


def most_by_layer(held: Held, optimizer: str) -> dict[Where, int]:
    """Bytes that are there, at most, while forward or backward is in each layer."""
    found: dict[Where, int] = {}
    for moment in _moments(held):
        if moment.where:
            total = _memory_at(moment, held, optimizer).total
            found[moment.where] = max(found.get(moment.where, 0), total)
    return found


class _Moment(NamedTuple):
    """What comes and goes; the rest is always there."""

    lent: int
    """Of the weights."""
    gradients: int
    activations: int
    where: Where | None = None

    @property
    def bytes(self) -> int:
        return self.lent + self.gradients + self.activations


def _memory_at(moment: _Moment, held: Held, optimizer: str) -> Memory:
    trained = weights_of(held.layers)
    frozen = sum(layer.frozen_bytes for layer in held.layers)
    updated = trained if held.updated_bytes is None else held.updated_bytes
    return Memory(
        weights=frozen + (trained if held.lent_bytes is None else moment.lent),
        gradients=moment.gradients,
        optimizer=OPTIMIZER_COPIES.get(optimizer, 0) * updated if held.updates else 0,
        activations=moment.activations,
        inputs=held.input_bytes,
        buffers=held.buffer_bytes + max((layer.library_bytes for layer in held.layers), default=0),
    )


def _moments(held: Held) -> Iterator[_Moment]:
    trained = weights_of(held.layers)
    none = (0,) * len(held.layers)
    lent, again = held.lent_bytes or none, held.lent_again_bytes or none
    yield _Moment(0, 0, held.ahead_bytes)
    for turn in held.turns or _there_and_back(held, trained):
        kept = list(accumulate(held.layers[at].kept_bytes for at in turn.layers))
        made = 0
        for at, keeps in zip(reversed(turn.layers), reversed(kept), strict=True):
            layer = held.layers[at]
            if turn.phase == "forward":
                activations = turn.beside_bytes + keeps + layer.forward_bytes
                yield _Moment(lent[at], turn.gradient_bytes, activations, (layer.module, turn.phase))
                continue
            made += sum(layer.parameters)
            new = max(layer.parameters, default=0) if turn.adds else made
            activations = turn.beside_bytes + keeps + layer.backward_bytes + held.returned_bytes
            yield _Moment(again[at], turn.gradient_bytes + new, activations, (layer.module, turn.phase))
    yield _Moment(0, (0 if held.gradients == "leave" else trained) + held.flat_bytes, 0)


def _there_and_back(held: Held, trained: int) -> tuple[Turn, Turn]:
    layers, standing = range(len(held.layers)), trained if held.gradients == "stay" else 0
    adds = held.gradients != "anew"
    return Turn(layers, "forward", 0, standing), Turn(layers, "backward", 0, standing, adds)


def memory_bytes(
    profile: ProfileDocument,
    costs: Costs,
    strategy: Strategy,
    batch_per_device: int,
    devices: int = 1,
    cluster: Cluster | None = None,
) -> int:
    """From the profiled peaks of one device, in a straight line through the batches, and what the strategy holds more
    or less than one device would; without peaks all is counted from the layers. `cluster`: of cores if not given."""
    on_gpu = cluster is not None and cluster.has_gpus
    known = replace(footprint_of(profile), on_gpu=on_gpu)
    through_host = on_gpu and cluster is not None and cluster.backend == "gloo"
    run = Run(devices, batch_per_device * devices, known, on_gpu, through_host)
    layers = _layers_of(profile, samples_at_a_time(strategy, run))
    # Of many devices some are like others: the first ones, one in the middle and the last tell enough.
    ranks = range(devices) if devices <= 8 else (0, 1, devices // 2, devices - 1)
    counted = max(peak_memory(held_by(strategy, rank, run, layers)).total for rank in ranks)
    peaks = [(step.batch, step.peak_memory_bytes) for step in costs.steps if step.peak_memory_bytes]
    if not peaks:
        return counted
    (first, low), (last, high) = peaks[0], peaks[-1]
    alone = peak_memory(Held(_layers_of(profile, batch_per_device), run.inputs(batch_per_device))).total
    kept = sum(layer.activation_bytes for layer in profile.layers)
    per_sample = (high - low) / (last - first) if last > first else 2 * kept
    measured = low + per_sample * (batch_per_device - first)
    return round(max(measured, 4 * profile.parameter_bytes)) + counted - alone


def _layers_of(profile: ProfileDocument, samples: int) -> Layers:
    """A profile has only what each layer puts out: backward needs that, its gradient, and the one it passes on."""
    if not profile.layers:
        return (LayerMemory("", (profile.parameter_bytes,), 0, 0, 0),)
    before = [profile.input_bytes, *(layer.activation_bytes for layer in profile.layers)]
    return tuple(
        LayerMemory(
            layer.name,
            (layer.parameter_bytes,),
            layer.activation_bytes * samples,
            0,
            sum(around) * samples,
            backward_of=((at, layer.activation_bytes * samples),) if at < len(profile.layers) else (),
        )
        for at, (layer, around) in enumerate(zip(profile.layers, pairwise(before), strict=True), 1)
    )
