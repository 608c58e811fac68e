"""Central storage: weights and optimizer in host memory, fetched layer by layer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.core.errors import UserError
from scalewise.hardware.collectives import Backend
from scalewise.hardware.transfers import Send
from scalewise.strategies.base import AT_LEAST, Strategy
from scalewise.strategies.plan import Ends, Footprint, Plan, PlanBuilder, share_sizes
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun

FETCH_CALLS, PUSH_CALLS = 21, 17
"""Device calls to fetch one weight and to push one gradient: allocation, copy, synchronization."""


@dataclass(frozen=True)
class CentralStorage(Strategy):
    """Weights stay in host memory; a device holds a layer's weights only while it computes that layer.

    Models whose weights exceed the memory of a device can be trained. Every device fetches all weights for forward,
    fetches again those that backward reads, and pushes all gradients: at most 3 S N bytes per step for S bytes of
    parameters and N devices.
    """

    name: ClassVar[str] = "central-storage"
    summary: ClassVar[str] = "weights and optimizer in host memory; devices fetch them layer by layer, push gradients"
    exact: ClassVar[bool] = True
    one_host: ClassVar[bool] = True
    updates_on_host: ClassVar[bool] = True
    for_large_models: ClassVar[bool] = True
    why_no_graph: ClassVar[str] = "central-storage updates on the host after every step"

    prefetch: int = field(default=1, metadata={AT_LEAST: 0})
    """Number of layers fetched ahead of the one being computed."""

    def check_hosts(self, hosts: int) -> None:
        if hosts > 1:
            raise UserError(
                f"central-storage keeps the weights in the memory of one host, but this run has {hosts} hosts",
                "use --hosts 1, or --strategy mirrored",
            )

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Plan one step. Ranks 0 to N-1 are devices, rank N is host memory; transfers are copies, on any backend.

        device  | forward 0 | forward 1 |  ...  loss  | backward 1 | backward 0 |   | (barrier) update (barrier)
        copies  | pull 1    | pull 2    |  ...        | pull 0     | push 1     | push 0
        """
        builder = PlanBuilder()
        samples = share_sizes(batch, devices)
        pushed: tuple[int, ...] = ()
        for rank in range(devices):
            pushed += self._device_step(rank, samples[rank], footprint, devices, builder)
        reduced_bytes = 3 * (devices - 1) * sum(footprint.parameter_bytes) // devices
        barrier = builder.meet(devices, backend, pushed)
        updated: tuple[int, ...] = ()
        for rank in range(devices):
            updated += builder.compute(
                "update", rank, batch, barrier, 1 / devices, moved_bytes=reduced_bytes, in_host_memory=True
            )
        builder.meet(devices, backend, updated)
        return builder.plan()

    def _device_step(
        self, rank: int, samples: int, footprint: Footprint, host: int, builder: PlanBuilder
    ) -> tuple[int, ...]:
        """Add one device's operations from load to the last push; return what the update waits for."""
        total = sum(footprint.parameter_bytes)
        sizes = footprint.parameter_bytes
        read_again = footprint.read_again or (True,) * len(sizes)
        shares = footprint.backward_shares([range(position, position + 1) for position in range(len(sizes))])
        done = builder.compute("load", rank, samples)
        computed = deque([done] * (self.prefetch + 1), self.prefetch + 1)

        def pull(size: int) -> Ends:
            return builder.transfer("pull", [Send(host, rank, size)], {host: computed[0]})

        for size in reversed(sizes):
            weights = pull(size)
            done = builder.compute("forward", rank, samples, done + weights[rank], size / total, calls=FETCH_CALLS)
            computed.append(done)
        done = builder.compute("loss", rank, samples, done)
        pushed: tuple[int, ...] = ()
        for size, read, share in zip(sizes, read_again, shares, strict=True):
            before = done + (pull(size)[rank] if read else ())
            calls = PUSH_CALLS + FETCH_CALLS * read
            done = builder.compute("backward", rank, samples, before, share, calls=calls)
            computed.append(done)
            pushed += builder.transfer("push", [Send(rank, host, size)], {rank: done})[host]
        return pushed

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:  # noqa: ARG002
        """A device holds the weights of the current layer and of those fetched ahead: the following layers in forward,
        the preceding layers in backward."""
        sizes = [sum(layer.parameters) for layer in layers]
        read_again = zip(run.footprint.parameter_names, run.footprint.read_again, strict=False)
        modules_read_again = {name.rpartition(".")[0] for name, read in read_again if read}
        known = bool(run.footprint.read_again)
        in_backward = [
            size if not known or layer.module in modules_read_again else 0
            for size, layer in zip(sizes, layers, strict=True)
        ]
        return RankMemory(
            layers,
            run.inputs(run.part_of_share),
            updates=False,
            gradients="leave",
            fetched_bytes=tuple(_fetched_bytes(sizes, self.prefetch)),
            fetched_again_bytes=tuple(_fetched_bytes(in_backward[::-1], self.prefetch)[::-1]),
        )


def _fetched_bytes(sizes: list[int], ahead: int) -> list[int]:
    """Bytes on the device while each layer is computed: its own and those of the next `ahead` layers with weights."""
    return [size + sum([other for other in sizes[at + 1 :] if other][:ahead]) for at, size in enumerate(sizes)]
