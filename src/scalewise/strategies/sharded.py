"""Sharded: every weight, gradient and optimizer state is on one device only; layers are gathered while they work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from scalewise.collectives.collective import Collective
from scalewise.plan import Ends, Footprint, Plan, PlanBuilder
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


class _Step:
    """The plan under way. Units are in the order of forward, the model's own parameters first."""

    def __init__(self, footprint: Footprint, devices: int, batch: int, backend: Backend) -> None:
        self.builder = PlanBuilder()
        self.footprint = footprint
        self.devices = devices
        self.backend = backend
        self.alike = alike_shares(batch, devices)
        names = footprint.parameter_names or [f"{at}.weight" for at in range(len(footprint.parameter_bytes))]
        units = units_of(names[::-1])
        last = len(names) - 1
        self.units = {unit: [last - at for at in units[unit]] for unit in sorted(units, key=bool)}
        self.done: Ends = {first: () for first, _, _ in self.alike}
        self.earlier = self.done
        """What the devices had done before what they do last."""
        self.talked: tuple[int, ...] = ()
        """The last exchange: those of one group follow each other."""

    def plan(self) -> Plan:
        self._compute("load")
        sizes = self.footprint.parameter_bytes
        for positions in self.units.values():
            gathered = self._gather(positions)
            part = sum(sizes[at] for at in positions) / sum(sizes)
            self._compute("forward", part, gathered, self._put_in_place(positions))
        self._compute("loss")
        backward = [*reversed([unit for unit in self.units if unit]), *(unit for unit in self.units if not unit)]
        shares = self.footprint.backward_shares([range(at, at + 1) for at in range(len(sizes))])
        gathered = ()
        for unit, following in pairwise([*backward, ""]):
            ahead = self._gather(self.units[following]) if following else ()
            copied = self._laid_out(self.units[unit])
            if unit not in ("", backward[0]):
                copied += self._put_in_place(self.units[unit])
            self._compute("backward", sum(shares[at] for at in self.units[unit]), gathered, copied)
            self._exchange("reduce", "reduce_scatter", self.units[unit], self.done)
            gathered = ahead
        self._compute("update", _shard_part(self.footprint, self.devices), self.talked)
        return self.builder.plan()

    def _put_in_place(self, positions: Sequence[int]) -> int:
        """Bytes read and written: the own shards to where they leave from, and what was gathered to the layer."""
        return self._laid_out(positions) + self._laid_out(positions) // self.devices

    def _laid_out(self, positions: Sequence[int]) -> int:
        """Bytes read and written: gradients in the order in which they are reduced."""
        return 2 * _padded_bytes(self.footprint, positions, self.devices) if self.devices > 1 else 0

    def _compute(self, phase: str, share: float = 1.0, after: tuple[int, ...] = (), copied_bytes: int = 0) -> None:
        waits = self.talked if self.backend == "gloo" else after
        self.earlier = self.done
        self.done = {
            first: self.builder.compute(phase, first, samples, self.done[first] + waits, share, count, copied_bytes)
            for first, count, samples in self.alike
        }

    def _gather(self, positions: Sequence[int]) -> tuple[int, ...]:
        return self._exchange("gather", "all_gather", positions, self.done if self.backend == "gloo" else self.earlier)

    def _exchange(self, phase: str, operation: str, positions: Sequence[int], after: Ends) -> tuple[int, ...]:
        size = _padded_bytes(self.footprint, positions, self.devices)
        ready = tuple(position for ends in after.values() for position in ends)
        made = Collective(operation, self.backend, self.devices, size)
        self.talked = self.builder.collective(phase, made, ready + self.talked) if self.devices > 1 else ()
        return self.talked


def _padded_bytes(footprint: Footprint, positions: Sequence[int], devices: int) -> int:
    """FSDP2 cuts a tensor along its first dimension, and fills it up to whole shards."""
    total = 0
    for at in positions:
        size = footprint.parameter_bytes[at]
        first = footprint.parameter_shapes[at][0] if footprint.parameter_shapes else size // 4
        total += size // first * devices * -(-first // devices)
    return total


def _shard_part(footprint: Footprint, devices: int) -> float:
    """The part of the model that the fullest device holds."""
    sizes = footprint.parameter_bytes
    return _padded_bytes(footprint, range(len(sizes)), devices) / devices / sum(sizes)
