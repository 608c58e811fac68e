"""Sharded: every weight, gradient and optimizer state is on one device only; layers are gathered while they work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from scalewise.collectives.collective import Collective
from scalewise.plan import Ends, Footprint, Plan, PlanBuilder, Still
from scalewise.strategies.shares import alike_shares
from scalewise.strategies.strategy import Backend
from scalewise.strategies.units import units_of


@dataclass(frozen=True)
class Sharded:
    """torch's FSDP2, layer by layer: gathered for forward, again for backward, gradients reduced to their shards.

    The last layer stays from forward to backward, and so does what belongs to no layer.
    """

    name: ClassVar[str] = "sharded"
    summary: ClassVar[str] = "weights, gradients and optimizer state in shards, gathered layer by layer (torch FSDP2)"
    exact: ClassVar[bool] = True

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """With gloo every call waits; with NCCL a layer is gathered while the one before it works.

        rank 0  forward 0 |         | forward 1 | backward 1 |          | backward 0 |          | update
        links   gather 0  | gather 1|             gather 0   | reduce 1 |            | reduce 0 |
        """
        return _Step(footprint, devices, batch, backend).plan()


@dataclass(frozen=True)
class _Unit:
    """Parameters that are gathered together: positions of those that learn, and those that do not."""

    learning: tuple[int, ...]
    still: tuple[Still, ...]


class _Step:
    """The plan under way. Units are in the order of forward, the model's own parameters first."""

    def __init__(self, footprint: Footprint, devices: int, batch: int, backend: Backend) -> None:
        self.builder = PlanBuilder()
        self.footprint = footprint
        self.devices = devices
        self.backend = backend
        self.alike = alike_shares(batch, devices)
        self.units = _units(footprint)
        self.done: Ends = {first: () for first, _, _ in self.alike}
        self.earlier = self.done
        """What the devices had done before what they do last."""
        self.talked: tuple[int, ...] = ()
        """The last exchange: those of one group follow each other."""

    def plan(self) -> Plan:
        self._compute("load")
        sizes = self.footprint.parameter_bytes
        total = sum(sizes) + sum(each.bytes for each in self.footprint.still)
        for unit in self.units.values():
            gathered = self._gather(unit)
            part = sum(sizes[at] for at in unit.learning) + sum(each.bytes for each in unit.still)
            self._compute("forward", part / total, gathered, self._put_in_place(unit))
        self._compute("loss")
        shares = self.footprint.backward_shares([range(at, at + 1) for at in range(len(sizes))])
        gathered = ()
        for number, (name, following) in enumerate(self._backward()):
            unit = self.units[name]
            ahead = self._gather(self.units[following]) if following else ()
            copied = self._laid_out(unit, learning=True)
            if name and number:
                copied += self._put_in_place(unit)
            self._compute("backward", sum(shares[at] for at in unit.learning), gathered, copied)
            self._exchange("reduce", "reduce_scatter", self._padded(unit, learning=True), self.done)
            gathered = ahead
        self._compute("update", _shard_part(self.footprint, self.devices), self.talked)
        return self.builder.plan()

    def _backward(self) -> list[tuple[str, str]]:
        """Units, each with the one that is gathered before it, down to the first that learns, and the model's own."""
        layers = [name for name in reversed(self.units) if name]
        own = self.units.get("")
        needed = len(layers)
        while not (own and own.learning) and needed > 1 and not self.units[layers[needed - 1]].learning:
            needed -= 1
        found = list(pairwise([*layers, ""]))[:needed]
        return [*found, ("", "")] if own else found

    def _put_in_place(self, unit: _Unit) -> int:
        """Bytes read and written: the own shards to where they leave from, and what was gathered to the layer."""
        return self._laid_out(unit) + self._laid_out(unit) // self.devices

    def _laid_out(self, unit: _Unit, *, learning: bool = False) -> int:
        """Bytes read and written: of gradients in the order in which they are reduced, or of all weights."""
        return 2 * self._padded(unit, learning=learning) if self.devices > 1 else 0

    def _padded(self, unit: _Unit, *, learning: bool = False) -> int:
        still = 0 if learning else sum(padded_bytes(each.bytes, each.shape, self.devices) for each in unit.still)
        return _padded_bytes(self.footprint, unit.learning, self.devices) + still

    def _compute(self, phase: str, share: float = 1.0, after: tuple[int, ...] = (), copied_bytes: int = 0) -> None:
        waits = self.talked if self.backend == "gloo" else after
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
        made = Collective(operation, self.backend, self.devices, size)
        self.talked = self.builder.collective(phase, made, ready + self.talked) if self.devices > 1 else ()
        return self.talked


def _units(footprint: Footprint) -> dict[str, _Unit]:
    count = len(footprint.parameter_bytes)
    names = footprint.parameter_names or [f"{at}.weight" for at in range(count)]
    forward: list[int | Still] = list(reversed(range(count)))
    for number, each in enumerate(footprint.still):
        forward.insert(each.after + number, each)
    grouped = units_of([each.name if isinstance(each, Still) else names[each] for each in forward])
    members = {unit: [forward[at] for at in grouped[unit]] for unit in sorted(grouped, key=bool)}
    return {
        unit: _Unit(
            tuple(each for each in found if not isinstance(each, Still)),
            tuple(each for each in found if isinstance(each, Still)),
        )
        for unit, found in members.items()
    }


def padded_bytes(size: int, shape: Sequence[int], devices: int) -> int:
    """FSDP2 cuts a tensor along its first dimension, and fills it up to whole shards."""
    return size // shape[0] * devices * -(-shape[0] // devices)


def _padded_bytes(footprint: Footprint, positions: Sequence[int], devices: int) -> int:
    total = 0
    for at in positions:
        size = footprint.parameter_bytes[at]
        shape = footprint.parameter_shapes[at] if footprint.parameter_shapes else (size // 4,)
        total += padded_bytes(size, shape, devices)
    return total


def _shard_part(footprint: Footprint, devices: int) -> float:
    """The part of the trained model that the fullest device holds."""
    sizes = footprint.parameter_bytes
    return _padded_bytes(footprint, range(len(sizes)), devices) / devices / sum(sizes)
