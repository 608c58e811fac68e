"""What ranks hold that have a shard of every layer each, as torch's FSDP2 gathers and reduces them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from scalewise.prediction.held import Held, LayerMemory, Layers, Run
from scalewise.strategies.units import units_of


@dataclass(frozen=True)
class _Unit:
    """Layers that are gathered together: bytes of their weights, and of those of the units around it."""

    whole: int = 0
    before: int = 0
    """Of the last unit before it that has weights."""
    behind: int = 0
    """Of the next unit, what learns."""
    learns: bool = True


def held_of_shards(rank: int, run: Run, layers: Layers) -> Held:
    """A unit's weights are gathered in one piece, and copied from there to where its layers read them.

    forward   of a unit   piece, weights
    backward  of a unit   weights, piece of the unit before, gradients so far, gradients of the unit behind as they left

    FSDP2 lets go of the piece only with the next forward, and of what leaves to be reduced only when the next unit's
    gradients are complete. The model's own weights, and those of the last unit, stay from forward to backward. Shards
    are filled up to as many rows on every device; the optimizer has those that are there.
    """
    named = _units_of(layers)
    units = _around(named, layers, run.devices)
    stays, last = units[""].whole, next((name for name in reversed(units) if units[name].whole), "")
    unshared: dict[str, int] = {}
    """Gradients of a unit beyond their shards, which the plan counts from when a layer makes them."""
    own = []
    learns_before = list(accumulate((bool(layer.parameters) for layer in layers), operator.or_))
    for name, layer, learns in reversed(list(zip(named, layers, learns_before, strict=True))):
        unit, begins = units[name if layer.module else last], name not in unshared
        shards = tuple(_filled(size, rows, run.devices) // run.devices for size, rows in _trained(layer))
        still = sum(_filled(size, rows, run.devices) // run.devices - size for size, rows in layer.still)
        unshared[name] = unshared.get(name, 0) + sum(layer.parameters) - sum(shards)
        weights = stays + (unit.whole if unit is not units[""] else 0)
        piece, ahead = (unit.whole or unit.before, unit.before) if run.devices > 1 and name else (0, 0)
        copied = unit.whole if begins and ahead and name != last else 0
        # While a unit works that learns nothing, its piece and that of the one before are both there, as measured.
        beside = max(ahead + unshared[name], copied) if unit.learns else ahead + copied
        backward = weights + unit.behind + beside if learns else 0
        own.append(
            replace(
                layer,
                parameters=shards,
                frozen_bytes=layer.frozen_bytes + still,
                forward_bytes=layer.forward_bytes + weights + piece,
                backward_bytes=layer.backward_bytes + backward,
            )
        )
    updated = sum(_there(*each, run.devices, rank) for layer in layers for each in _trained(layer))
    return Held(tuple(reversed(own)), run.inputs(run.share), updated_bytes=updated)


def _trained(layer: LayerMemory) -> list[tuple[int, int]]:
    """Bytes and rows of each; where those are not known, it can be cut anywhere."""
    return list(zip(layer.parameters, layer.rows or [max(size, 1) for size in layer.parameters], strict=True))


def _filled(size: int, rows: int, devices: int) -> int:
    """Over all devices, each of which has as many rows."""
    return size // rows * -(-rows // devices) * devices


def _there(size: int, rows: int, devices: int, rank: int) -> int:
    most = -(-rows // devices)
    return size // rows * min(most, max(0, rows - rank * most))


def _units_of(layers: Layers) -> list[str]:
    """The unit of every layer; '' is the model itself, and the loss."""
    found = [""] * len(layers)
    inside = [at for at, layer in enumerate(layers) if layer.module]
    for unit, positions in units_of([f"{layers[at].module}.weight" for at in inside]).items():
        for position in positions:
            found[inside[position]] = unit
    return found


def _around(named: Sequence[str], layers: Layers, devices: int) -> dict[str, _Unit]:
    """By name, in the order of forward, and '' first."""
    sizes: dict[str, int] = {"": 0}
    learning: dict[str, int] = {}
    for name, layer in zip(named, layers, strict=True):
        trained = sum(_filled(*each, devices) for each in _trained(layer))
        sizes[name] = sizes.get(name, 0) + trained + sum(_filled(*each, devices) for each in layer.still)
        learning[name] = learning.get(name, 0) + trained
    before: dict[str, int] = {}
    behind: dict[str, int] = {}
    order = [name for name in sizes if name]
    for first, second in pairwise(order):
        before[second] = sizes[first] or before.get(first, 0)
    for second, first in pairwise(reversed(order)):
        behind[first] = learning[second] if sizes[second] else behind.get(second, 0)
    return {
        name: _Unit(size, before.get(name, 0), behind.get(name, 0), not size or learning[name] > 0)
        for name, size in sizes.items()
    }
