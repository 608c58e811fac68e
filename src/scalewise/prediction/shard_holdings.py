"""What ranks hold that have a shard of every layer each, as torch's FSDP2 gathers and reduces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from scalewise.prediction.held import Held, Layers, Run
from scalewise.strategies.units import units_of


@dataclass(frozen=True)
class _Unit:
    """Layers that are gathered together: bytes of their weights, and of those of the units around it."""

    whole: int = 0
    before: int = 0
    """Of the last unit before it that has weights."""
    behind: int = 0


def held_of_shards(run: Run, layers: Layers) -> Held:
    """A unit's weights are gathered in one piece, and copied from there to where its layers read them.

    forward   of a unit   piece, weights
    backward  of a unit   weights, piece of the unit before, gradients so far, gradients of the unit behind as they left

    FSDP2 lets go of the piece only with the next forward, and of what leaves to be reduced only when the next unit's
    gradients are complete. The model's own weights, and those of the last unit, stay from forward to backward.
    """
    named = _units_of(layers)
    units = _around(named, layers)
    stays, last = units[""].whole, next((name for name in reversed(units) if units[name].whole), "")
    unshared: dict[str, int] = {}
    """Gradients of a unit beyond their shards, which the plan counts from when a layer makes them."""
    own = []
    for name, layer in reversed(list(zip(named, layers, strict=True))):
        unit, begins = units[name if layer.module else last], name not in unshared
        shards = tuple(-(-size // run.devices) for size in layer.parameters)
        unshared[name] = unshared.get(name, 0) + sum(layer.parameters) - sum(shards)
        weights = stays + (unit.whole if unit is not units[""] else 0)
        piece, ahead = (unit.whole or unit.before, unit.before) if run.devices > 1 and name else (0, 0)
        copied = unit.whole if begins and ahead and name != last else 0
        own.append(
            replace(
                layer,
                parameters=shards,
                forward_bytes=layer.forward_bytes + weights + piece,
                backward_bytes=layer.backward_bytes + weights + unit.behind + max(ahead + unshared[name], copied),
            )
        )
    return Held(tuple(reversed(own)), run.inputs(run.share))


def _units_of(layers: Layers) -> list[str]:
    """The unit of every layer; '' is the model itself, and the loss."""
    found = [""] * len(layers)
    inside = [at for at, layer in enumerate(layers) if layer.module]
    for unit, positions in units_of([f"{layers[at].module}.weight" for at in inside]).items():
        for position in positions:
            found[inside[position]] = unit
    return found


def _around(named: Sequence[str], layers: Layers) -> dict[str, _Unit]:
    """By name, in the order of forward, and '' first."""
    sizes: dict[str, int] = {"": 0}
    for name, layer in zip(named, layers, strict=True):
        sizes[name] = sizes.get(name, 0) + sum(layer.parameters)
    before: dict[str, int] = {}
    behind: dict[str, int] = {}
    order = [name for name in sizes if name]
    for first, second in pairwise(order):
        before[second] = sizes[first] or before.get(first, 0)
    for second, first in pairwise(reversed(order)):
        behind[first] = sizes[second] or behind.get(second, 0)
    return {name: _Unit(size, before.get(name, 0), behind.get(name, 0)) for name, size in sizes.items()}
