"""Flat: data parallelism whose gradients are all-reduced as one message after backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from scalewise.hardware.collectives import Backend, Collective
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, share_sizes
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun, weights_of


@dataclass(frozen=True)
class Flat(Strategy):
    """Data parallelism without overlap: backward, then one all-reduce per message, then the update."""

    name: ClassVar[str] = "flat"
    summary: ClassVar[str] = "gradients all-reduced in one message after backward"
    exact: ClassVar[bool] = True

    messages: Literal["one", "two"] = "one"
    """Number of all-reduces into which the gradients are split."""

    @property
    def parts(self) -> int:
        return 1 if self.messages == "one" else 2

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        builder = PlanBuilder()
        done: list[tuple[int, ...]] = [()] * devices
        samples = [max(share, 1) for share in share_sizes(batch, devices)]
        for phase in ("load", "forward", "loss", "backward"):
            done = [builder.compute(phase, rank, samples[rank], done[rank]) for rank in range(devices)]
        elements = sum(footprint.parameter_bytes) // 4
        ready = tuple(position for ends in done for position in ends)
        for size in share_sizes(elements, self.parts) if devices > 1 else ():
            ready = builder.collective("reduce", Collective("all_reduce", backend, devices, 4 * size), ready)
        for rank in range(devices):
            builder.compute("update", rank, samples[rank], ready)
        return builder.plan()

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        """Memory of a replica, plus the message, which is a second copy of all gradients."""
        return replace(super().rank_memory(rank, run, layers), flat_bytes=weights_of(layers))
