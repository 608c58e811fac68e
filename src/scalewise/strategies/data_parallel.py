"""The study's DataParallel: eight steps through one default device, which alone holds the weights and updates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from scalewise.collectives import point_to_point
from scalewise.collectives.collective import Collective
from scalewise.collectives.send import Send
from scalewise.plan import Ends, Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import share_sizes
from scalewise.strategies.strategy import Backend

LOSS_CALLS = 60
"""To the default device, for the loss and its gradient, which wait for the outputs of all."""


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
        if self.engine == "threads":
            return _threads_plan(footprint, devices, batch)
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
        loss = builder.compute("loss", 0, batch, ends[0] + gathered.get(0, ()), calls=LOSS_CALLS)
        scattered = builder.transfer(
            "scatter", to_each({r: samples[r] * footprint.output_bytes for r in others}), {0: loss}
        )
        # The others copy their gradients to where they leave from; the default device adds up what arrives.
        ends = {
            rank: builder.compute(
                "backward", rank, samples[rank], scattered.get(rank, loss), moved_bytes=2 * model if rank else 0
            )
            for rank in range(len(samples))
        }
        reduced = builder.transfer("reduce", from_each(dict.fromkeys(others, model)), ends)
        # Who sums on the host asks for the update only afterwards.
        waited = 1.0 if others and backend == "gloo" else 0.0
        summed = ends[0] + reduced.get(0, ())
        builder.compute("update", 0, batch, summed, moved_bytes=3 * len(others) * model, called_share=waited)
        return builder.plan()


def _threads_plan(footprint: Footprint, devices: int, batch: int) -> Plan:
    """torch.nn.DataParallel: one process; NCCL's broadcast and reduce are pipelined, so every link carries two models.

    Shares are torch's chunks: all but the last as large as the largest.
    """
    builder = PlanBuilder()
    chunk = -(-batch // devices)
    samples = [min(chunk, batch - start) for start in range(0, batch, chunk)]
    others = range(1, len(samples))
    model = sum(footprint.parameter_bytes)

    def to_each(phase: str, bytes_per_sample: int, after: tuple[int, ...]) -> Ends:
        made = [Send(0, rank, samples[rank] * bytes_per_sample) for rank in others if bytes_per_sample]
        return builder.transfer(phase, made, {0: after})

    loaded = builder.compute("load", 0, batch)
    scattered = to_each("scatter", footprint.input_bytes, loaded)
    before = tuple(position for positions in scattered.values() for position in positions) or loaded
    have = builder.collective("broadcast", Collective("broadcast", "nccl", len(samples), model), before)
    ends = {rank: builder.compute("forward", rank, samples[rank], have) for rank in range(len(samples))}
    gathered = builder.transfer(
        "gather", [Send(rank, 0, samples[rank] * footprint.output_bytes) for rank in others], ends
    )
    loss = builder.compute("loss", 0, batch, ends[0] + gathered.get(0, ()))
    returned = to_each("scatter", footprint.output_bytes, loss)
    ends = {
        rank: builder.compute("backward", rank, samples[rank], returned.get(rank, loss)) for rank in range(len(samples))
    }
    all_done = tuple(position for positions in ends.values() for position in positions)
    reduced = builder.collective("reduce", Collective("reduce", "nccl", len(samples), model), all_done)
    builder.compute("update", 0, batch, reduced)
    return builder.plan()
