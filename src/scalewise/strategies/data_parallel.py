"""The study's DataParallel: eight steps through one default device, which alone holds the weights and updates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from scalewise.collectives import point_to_point
from scalewise.collectives.send import Send
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import share_sizes
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class DataParallel:
    """Scatter batch, broadcast model, forward, gather, loss, scatter its gradients, backward, reduce; then update."""

    name: ClassVar[str] = "data-parallel"
    summary: ClassVar[str] = "the study's eight steps through one default device (the single-reducer baseline)"
    exact: ClassVar[bool] = True

    engine: Literal["ranks", "threads"] = "ranks"
    """ranks: a process per device, point to point. threads: torch.nn.DataParallel itself, on 2 or more CUDA devices."""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """A device without samples takes no part, as in torch."""
        builder = PlanBuilder()
        samples = [size for size in share_sizes(batch, devices) if size]
        others = range(1, len(samples))
        model = sum(footprint.parameter_bytes)

        def to_each(bytes_for: dict[int, int]) -> list[Send]:
            return [send for rank, size in bytes_for.items() for send in point_to_point(backend, 0, rank, size)]

        def from_each(bytes_for: dict[int, int]) -> list[Send]:
            return [send for rank, size in bytes_for.items() for send in point_to_point(backend, rank, 0, size)]

        loaded = builder.compute("load", 0, batch)
        ends = builder.transfer(
            "scatter", to_each({r: samples[r] * footprint.input_bytes for r in others}), {0: loaded}
        )
        at_root = ends.get(0, loaded)
        ends |= builder.transfer("broadcast", to_each(dict.fromkeys(others, model)), {0: at_root})
        ends = {
            rank: builder.compute("forward", rank, samples[rank], ends.get(rank, loaded))
            for rank in range(len(samples))
        }
        gathered = builder.transfer("gather", from_each({r: samples[r] * footprint.output_bytes for r in others}), ends)
        loss = builder.compute("loss", 0, batch, ends[0] + gathered.get(0, ()))
        scattered = builder.transfer(
            "scatter", to_each({r: samples[r] * footprint.output_bytes for r in others}), {0: loss}
        )
        ends = {
            rank: builder.compute("backward", rank, samples[rank], scattered.get(rank, loss))
            for rank in range(len(samples))
        }
        reduced = builder.transfer("reduce", from_each(dict.fromkeys(others, model)), ends)
        builder.compute("update", 0, batch, ends[0] + reduced.get(0, ()))
        return builder.plan()
