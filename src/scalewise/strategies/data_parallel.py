"""DataParallel: the default device scatters the batch, broadcasts the model and reduces the gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from scalewise.core.errors import UserError
from scalewise.hardware.collectives import Backend, Collective, point_to_point
from scalewise.hardware.transfers import Send
from scalewise.strategies.base import SessionKind, Strategy
from scalewise.strategies.plan import Ends, Footprint, HostWork, Plan, PlanBuilder, alike_shares, share_sizes
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun, weights_of


def alike_workers_plan(footprint: Footprint, devices: int, batch: int, backend: Backend) -> Plan:
    """Plan the eight steps of `DataParallel` with devices of equal share represented by one, which is as slow as the
    slowest of them.

    Ranks 0 to N-2 are the other devices; the default device comes last, so that equal devices have consecutive ranks.
    """
    builder = PlanBuilder()
    root, own = devices - 1, -(-batch // devices)
    workers = [share for share in alike_shares(batch - own, root) if share[2]]
    model = sum(footprint.parameter_bytes)

    def exchange(phase: str, outwards: bool, bytes_per_sample: int, ready: Ends, fixed_bytes: int = 0) -> Ends:
        ends: Ends = {}
        for first, count, samples in workers:
            direction = (root, first) if outwards else (first, root)
            sends = point_to_point(backend, *direction, samples * bytes_per_sample + fixed_bytes)
            transfer = builder.transfer(phase, sends, ready, count)
            ends = {**ends, **transfer, root: ends.get(root, ()) + transfer.get(root, ())}
        return ends

    def compute(phase: str, after: Ends, default: tuple[int, ...], copied_bytes: int = 0) -> Ends:
        participants = [
            *((first, count, samples, copied_bytes) for first, count, samples in workers),
            (root, 1, own, 0),
        ]
        return {
            rank: builder.compute(phase, rank, samples, after.get(rank) or default, 1.0, count, copied)
            for rank, count, samples, copied in participants
        }

    loaded = builder.compute("load", root, batch)
    scattered = exchange("scatter", True, footprint.input_bytes, {root: loaded})
    at_root = scattered.get(root) or loaded
    replicas = exchange("broadcast", True, 0, {root: at_root}, model)
    ends = compute("forward", replicas, loaded)
    gathered = exchange("gather", False, footprint.output_bytes, ends)
    loss = builder.compute("loss", root, batch, ends[root] + gathered.get(root, ()))
    returned = exchange("scatter", True, footprint.output_bytes, {root: loss})
    ends = compute("backward", returned, loss, 2 * model)
    reduced = exchange("reduce", False, 0, ends, model)
    others = sum(count for _, count, _ in workers)
    builder.compute("update", root, batch, ends[root] + reduced.get(root, ()), moved_bytes=3 * others * model)
    return builder.plan()


@dataclass(frozen=True)
class ReplicationCost:
    """Host time of torch.nn.DataParallel, which copies the modules for every device and calls the copies, in Python."""

    copy_us: float
    """Time per module to copy it, on two devices."""
    call_us: float
    """Time per module call to call the copy on the second device. It overlaps with the devices' work."""
    exponent: float
    """Both times grow with the number of devices to this power."""
    launch_us: float
    """Time per module call in which the host launches forward and backward of one device."""

    def work(self, modules: int, module_calls: int, devices: int) -> HostWork | None:
        """Host work of one step, or None on one device."""
        if devices == 1 or not module_calls:
            return None
        growth = (devices / 2) ** self.exponent
        calls_us = self.call_us * module_calls * growth
        return HostWork(self.copy_us * modules * growth + calls_us, calls_us, self.launch_us * module_calls)


REPLICATION = ReplicationCost(copy_us=120.0, call_us=60.0, exponent=1.1, launch_us=275.0)
"""Fitted to data_parallel_torchvision on all of its five machines. `scalewise validate` fits the same constants to four
machines at a time, and scores the fifth."""


LOSS_CALLS = 60
"""Device calls of the loss and its gradient on the default device, which wait for the outputs of all devices."""


@dataclass(frozen=True)
class DataParallel(Strategy):
    """Eight steps: scatter the batch, broadcast the model, forward, gather outputs, loss, scatter its gradients,
    backward, reduce gradients. The default device then updates the model."""

    name: ClassVar[str] = "data-parallel"
    summary: ClassVar[str] = "one default device scatters the batch and reduces the gradients (torch.nn.DataParallel)"
    exact: ClassVar[bool] = True
    splits_batch: ClassVar[bool] = True

    engine: Literal["ranks", "threads"] = "ranks"
    """ranks: one process per device with point-to-point messages. threads: torch.nn.DataParallel on 2 or more GPUs."""

    @property
    def session_kind(self) -> SessionKind:
        return SessionKind.ONE_PROCESS if self.engine == "threads" else SessionKind.RANKS

    @property
    def replication(self) -> ReplicationCost:
        return REPLICATION

    @property
    def overlaps(self) -> bool:
        return self.engine == "ranks"

    def default_on(self, backend: Backend, hosts: int) -> Strategy:
        """torch.nn.DataParallel on the GPUs of one host, processes otherwise."""
        return DataParallel("threads") if backend == "nccl" and hosts == 1 else self

    def check_gpus(self, devices: int, gpus: int) -> None:
        if self.engine == "threads" and not 2 <= devices <= gpus:
            raise UserError(
                f"data-parallel:engine=threads needs 2 or more CUDA devices on this machine, which has {gpus}; "
                f"--devices is {devices}",
                "use data-parallel",
            )

    def plan_first(
        self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo", followed: int = 1
    ) -> Plan:
        if self.engine == "threads":
            return super().plan_first(footprint, devices, batch, backend, followed)
        return alike_workers_plan(footprint, devices, batch, backend)

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Plan one step. Devices without samples are idle, as in torch."""
        if self.engine == "threads":
            return _threads_plan(footprint, devices, batch, self.replication)
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
        # The other devices copy gradients into a send buffer; the default device adds up what it receives.
        ends = {
            rank: builder.compute(
                "backward", rank, samples[rank], scattered.get(rank, loss), moved_bytes=2 * model if rank else 0
            )
            for rank in range(len(samples))
        }
        reduced = builder.transfer("reduce", from_each(dict.fromkeys(others, model)), ends)
        # With gloo the host adds the gradients, and launches the update only afterwards.
        called_share = 1.0 if others and backend == "gloo" else 0.0
        received = ends[0] + reduced.get(0, ())
        builder.compute("update", 0, batch, received, moved_bytes=3 * len(others) * model, called_share=called_share)
        return builder.plan()

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        """The default device holds the whole batch, its loss, and the gradients of all devices. Every other device
        holds one send buffer for its gradients and computes no loss."""
        if self.engine == "threads":
            return RankMemory(layers, run.inputs(run.batch if rank == 0 else run.share), updates=rank == 0)
        weights, output_bytes = weights_of(layers), run.footprint.output_bytes
        *model, loss = layers
        if rank:
            received = weights + run.share * output_bytes
            inputs = run.share * run.footprint.input_bytes
            return RankMemory(tuple(model), inputs, updates=False, buffer_bytes=received)
        whole, times = run.batch * output_bytes, run.batch / run.share
        # From the loss to the update, the outputs of all devices are one tensor, and their gradients another.
        model = [replace(layer, backward_bytes=layer.backward_bytes + whole) for layer in model]
        loss = replace(
            loss, kept_bytes=round(loss.kept_bytes * times), backward_bytes=round(loss.backward_bytes * times)
        )
        return RankMemory((*model, loss), run.inputs(run.batch), buffer_bytes=(run.devices - 1) * weights + whole)


def _threads_plan(footprint: Footprint, devices: int, batch: int, replication: ReplicationCost) -> Plan:
    """Plan torch.nn.DataParallel: NCCL's broadcast and reduce are pipelined, so every link carries the model twice.
    One process replicates the modules for all devices.

    Shares are the chunks of `torch.chunk`: equal except for the last one.
    """
    builder = PlanBuilder()
    chunk = -(-batch // devices)
    samples = [min(chunk, batch - start) for start in range(0, batch, chunk)]
    others = range(1, len(samples))
    model = sum(footprint.parameter_bytes)

    def to_each(phase: str, bytes_per_sample: int, after: tuple[int, ...]) -> Ends:
        sends = [Send(0, rank, samples[rank] * bytes_per_sample) for rank in others if bytes_per_sample]
        return builder.transfer(phase, sends, {0: after})

    loaded = builder.compute("load", 0, batch)
    scattered = to_each("scatter", footprint.input_bytes, loaded)
    before = tuple(position for positions in scattered.values() for position in positions) or loaded
    if work := replication.work(footprint.modules, footprint.module_calls, len(samples)):
        before = builder.compute("broadcast", 0, samples[0], before, host_work=work)
    replicas = builder.collective("broadcast", Collective("broadcast", "nccl", len(samples), model), before)
    ends = {rank: builder.compute("forward", rank, samples[rank], replicas) for rank in range(len(samples))}
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
