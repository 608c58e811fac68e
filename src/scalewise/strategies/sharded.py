"""Sharded: parameters, gradients and optimizer state sharded over devices (FSDP2)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar

from scalewise.hardware.collectives import Backend, Collective
from scalewise.strategies.base import COMPILED_RANKS, Strategy
from scalewise.strategies.plan import Ends, Footprint, FrozenParameter, Plan, PlanBuilder, alike_shares, units_of
from scalewise.strategies.rank_memory import LayerMemories, LayerMemory, RankMemory, TrainingRun


@dataclass(frozen=True)
class _MemoryUnit:
    """Parameter bytes of layers that are gathered together, and of the units around them."""

    whole: int = 0
    """Bytes of the unit's unsharded parameters."""
    before: int = 0
    """Parameter bytes of the nearest earlier unit that has parameters."""
    behind: int = 0
    """Trained parameter bytes of the next unit."""
    learns: bool = True
    """The unit has trained parameters, or no parameters at all."""


def memory_of_shards(rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
    """Memory of a rank that holds a shard of every layer and gathers one unit at a time.

    A unit's weights are gathered into a flat buffer, and copied from there into the parameters that its layers read.

    In memory during forward of a unit: its flat buffer and weights. During backward: its weights, the flat buffer of
    the previous unit, its gradients, and the gradients of the next unit in flight.

    FSDP2 frees the flat buffer at the next forward, and gradients in flight when those of the next reduced unit are
    complete. Weights of the model itself and of the last unit stay from forward to backward. Shards are padded to the
    same number of rows on every device; the optimizer has state for unpadded rows only.
    """
    unit_names = _unit_names(layers)
    units = _memory_units(unit_names, layers, run.devices)
    stays, last = units[""].whole, next((name for name in reversed(units) if units[name].whole), "")
    unshared: dict[str, int] = {}
    """For each unit, bytes of its unsharded gradients so far, less those of their shards, which RankMemory counts."""
    own = []
    learns_before = list(accumulate((bool(layer.parameters) for layer in layers), operator.or_))
    for name, layer, learns in reversed(list(zip(unit_names, layers, learns_before, strict=True))):
        unit, begins = units[name if layer.module else last], name not in unshared
        shards = tuple(_bytes_with_padding(size, rows, run.devices) // run.devices for size, rows in _trained(layer))
        frozen_change = sum(
            _bytes_with_padding(size, rows, run.devices) // run.devices - size for size, rows in layer.frozen
        )
        unshared[name] = unshared.get(name, 0) + sum(layer.parameters) - sum(shards)
        weights = stays + (unit.whole if unit is not units[""] else 0)
        buffer, ahead = (unit.whole or unit.before, unit.before) if run.devices > 1 and name else (0, 0)
        copied = unit.whole if begins and ahead and name != last else 0
        # Measured: during backward of a unit without trained parameters, its flat buffer and the previous one coexist.
        beside = max(ahead + unshared[name], copied) if unit.learns else ahead + copied
        backward = weights + unit.behind + beside if learns else 0
        own.append(
            replace(
                layer,
                parameters=shards,
                frozen_bytes=layer.frozen_bytes + frozen_change,
                forward_bytes=layer.forward_bytes + weights + buffer,
                backward_bytes=layer.backward_bytes + backward,
            )
        )
    updated = sum(_unpadded_bytes(*tensor, run.devices, rank) for layer in layers for tensor in _trained(layer))
    return RankMemory(tuple(reversed(own)), run.inputs(run.share), updated_bytes=updated)


def _trained(layer: LayerMemory) -> list[tuple[int, int]]:
    """(bytes, rows) of each trained tensor; a tensor with unknown rows can be split at any byte."""
    return list(zip(layer.parameters, layer.rows or [max(size, 1) for size in layer.parameters], strict=True))


def _bytes_with_padding(size: int, rows: int, devices: int) -> int:
    """Bytes on all devices together, with padding to the same number of rows on every device."""
    return size // rows * -(-rows // devices) * devices


def _unpadded_bytes(size: int, rows: int, devices: int, rank: int) -> int:
    """Bytes of the rows of a tensor that one rank holds, without padding."""
    most = -(-rows // devices)
    return size // rows * min(most, max(0, rows - rank * most))


def _unit_names(layers: LayerMemories) -> list[str]:
    """Name of each layer's unit; '' for the model itself and the loss."""
    names = [""] * len(layers)
    inside = [at for at, layer in enumerate(layers) if layer.module]
    for unit, positions in units_of([f"{layers[at].module}.weight" for at in inside]).items():
        for position in positions:
            names[inside[position]] = unit
    return names


def _memory_units(unit_names: Sequence[str], layers: LayerMemories, devices: int) -> dict[str, _MemoryUnit]:
    """Units by name, in the order of forward; the unit '' of the model itself comes first."""
    sizes: dict[str, int] = {"": 0}
    trained_sizes: dict[str, int] = {}
    for name, layer in zip(unit_names, layers, strict=True):
        trained = sum(_bytes_with_padding(*tensor, devices) for tensor in _trained(layer))
        frozen = sum(_bytes_with_padding(*tensor, devices) for tensor in layer.frozen)
        sizes[name] = sizes.get(name, 0) + trained + frozen
        trained_sizes[name] = trained_sizes.get(name, 0) + trained
    before: dict[str, int] = {}
    behind: dict[str, int] = {}
    order = [name for name in sizes if name]
    for first, second in pairwise(order):
        before[second] = sizes[first] or before.get(first, 0)
    for second, first in pairwise(reversed(order)):
        behind[first] = trained_sizes[second] if sizes[second] else behind.get(second, 0)
    return {
        name: _MemoryUnit(size, before.get(name, 0), behind.get(name, 0), not size or trained_sizes[name] > 0)
        for name, size in sizes.items()
    }


@dataclass(frozen=True)
class Sharded(Strategy):
    """Fully sharded data parallelism with torch's FSDP2.

    The weights of a layer are gathered for forward and again for backward, and its gradients are reduce-scattered.
    Weights of the last layer, and those outside of layers, stay gathered from forward to backward.
    """

    name: ClassVar[str] = "sharded"
    summary: ClassVar[str] = "weights, gradients and optimizer state in shards, gathered layer by layer (torch FSDP2)"
    exact: ClassVar[bool] = True
    gathers_weights: ClassVar[bool] = True
    for_large_models: ClassVar[bool] = True
    executions: ClassVar[Mapping[str, Sequence[str]]] = COMPILED_RANKS

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Plan one step. With gloo every collective blocks; with NCCL a layer is gathered while the previous one runs.

        rank 0  forward 0 |         | forward 1 | backward 1 |          | backward 0 |          | update
        links   gather 0  | gather 1|             gather 0   | reduce 1 |            | reduce 0 |
        """
        return _ShardedPlan(footprint, devices, batch, backend).plan()

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        return memory_of_shards(rank, run, layers)


@dataclass(frozen=True)
class _Unit:
    """Parameters that are gathered together."""

    trained: tuple[int, ...]
    """Positions of the trained parameters in the footprint."""
    frozen: tuple[FrozenParameter, ...]


class _ShardedPlan:
    """Builder of the plan. Units are in the order of forward, the model's own parameters first."""

    def __init__(self, footprint: Footprint, devices: int, batch: int, backend: Backend) -> None:
        self.builder = PlanBuilder()
        self.footprint = footprint
        self.devices = devices
        self.backend = backend
        self.alike = alike_shares(batch, devices)
        self.units = _units(footprint)
        self.done: Ends = {first: () for first, _, _ in self.alike}
        self.earlier = self.done
        """Operations that end before the latest compute operation of each device starts."""
        self.last_collective: tuple[int, ...] = ()
        """Latest collective; the collectives of a process group run one after the other."""

    def plan(self) -> Plan:
        self._compute("load")
        sizes = self.footprint.parameter_bytes
        total = sum(sizes) + sum(parameter.bytes for parameter in self.footprint.frozen)
        for unit in self.units.values():
            gathered = self._gather(unit)
            part = sum(sizes[at] for at in unit.trained) + sum(parameter.bytes for parameter in unit.frozen)
            self._compute("forward", part / total, gathered, self._gather_copies(unit))
        self._compute("loss")
        shares = self.footprint.backward_shares([range(at, at + 1) for at in range(len(sizes))])
        gathered = ()
        for number, (name, following) in enumerate(self._backward_order()):
            unit = self.units[name]
            ahead = self._gather(self.units[following]) if following else ()
            copied = self._copied_bytes(unit, trained_only=True)
            if name and number:
                copied += self._gather_copies(unit)
            self._compute("backward", sum(shares[at] for at in unit.trained), gathered, copied)
            self._exchange("reduce", "reduce_scatter", self._padded(unit, trained_only=True), self.done)
            gathered = ahead
        self._compute("update", _shard_part(self.footprint, self.devices), self.last_collective)
        return self.builder.plan()

    def _backward_order(self) -> list[tuple[str, str]]:
        """(unit, unit prefetched during its backward) in the order of backward.

        Backward ends at the first unit with trained parameters, followed by the model's own parameters.
        """
        layers = [name for name in reversed(self.units) if name]
        own = self.units.get("")
        needed = len(layers)
        while not (own and own.trained) and needed > 1 and not self.units[layers[needed - 1]].trained:
            needed -= 1
        order = list(pairwise([*layers, ""]))[:needed]
        return [*order, ("", "")] if own else order

    def _gather_copies(self, unit: _Unit) -> int:
        """Bytes read and written to copy a unit's shards into the send buffer, and gathered weights to the layers."""
        return self._copied_bytes(unit) + self._copied_bytes(unit) // self.devices

    def _copied_bytes(self, unit: _Unit, *, trained_only: bool = False) -> int:
        """Bytes read and written to copy a unit's weights, or its gradients with `trained_only`."""
        return 2 * self._padded(unit, trained_only=trained_only) if self.devices > 1 else 0

    def _padded(self, unit: _Unit, *, trained_only: bool = False) -> int:
        trained = _padded_bytes(self.footprint, unit.trained, self.devices)
        if trained_only:
            return trained
        return trained + sum(padded_bytes(frozen.bytes, frozen.shape, self.devices) for frozen in unit.frozen)

    def _compute(self, phase: str, share: float = 1.0, after: tuple[int, ...] = (), copied_bytes: int = 0) -> None:
        waits = self.last_collective if self.backend == "gloo" else after
        self.earlier = self.done
        self.done = {
            first: self.builder.compute(phase, first, samples, self.done[first] + waits, share, count, copied_bytes)
            for first, count, samples in self.alike
        }

    def _gather(self, unit: _Unit) -> tuple[int, ...]:
        after = self.done if self.backend == "gloo" else self.earlier
        return self._exchange("gather", "all_gather", self._padded(unit), after)

    def _exchange(self, phase: str, operation: str, size: int, after: Ends) -> tuple[int, ...]:
        ready = tuple(position for ends in after.values() for position in ends)
        collective = Collective(operation, self.backend, self.devices, size)
        self.last_collective = (
            self.builder.collective(phase, collective, ready + self.last_collective) if self.devices > 1 else ()
        )
        return self.last_collective


def _units(footprint: Footprint) -> dict[str, _Unit]:
    count = len(footprint.parameter_bytes)
    names = footprint.parameter_names or [f"{at}.weight" for at in range(count)]
    forward: list[int | FrozenParameter] = list(reversed(range(count)))
    for number, frozen in enumerate(footprint.frozen):
        forward.insert(frozen.after + number, frozen)
    grouped = units_of([item.name if isinstance(item, FrozenParameter) else names[item] for item in forward])
    members = {unit: [forward[at] for at in grouped[unit]] for unit in sorted(grouped, key=bool)}
    return {
        unit: _Unit(
            tuple(item for item in items if not isinstance(item, FrozenParameter)),
            tuple(item for item in items if isinstance(item, FrozenParameter)),
        )
        for unit, items in members.items()
    }


def padded_bytes(size: int, shape: Sequence[int], devices: int) -> int:
    """Bytes of a tensor that FSDP2 splits along its first dimension and pads to equal shards."""
    rows = max(1, shape[0])
    return size // rows * devices * -(-rows // devices)


def _padded_bytes(footprint: Footprint, positions: Sequence[int], devices: int) -> int:
    total = 0
    for at in positions:
        size = footprint.parameter_bytes[at]
        shape = footprint.parameter_shapes[at] if footprint.parameter_shapes else (size // 4,)
        total += padded_bytes(size, shape, devices)
    return total


def _shard_part(footprint: Footprint, devices: int) -> float:
    """Fraction of the trained parameters in the largest shard."""
    sizes = footprint.parameter_bytes
    return _padded_bytes(footprint, range(len(sizes)), devices) / devices / sum(sizes)
