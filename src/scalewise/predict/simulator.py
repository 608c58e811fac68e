"""Simulate one step of a plan on a network, with the overlap of communication and compute."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from scalewise.core.timeline import Span, Timeline
from scalewise.hardware.collectives import Collective
from scalewise.hardware.transfers import Send
from scalewise.predict.collective_seconds import bytes_through_rank, collective_seconds, simulate_operations
from scalewise.predict.network import Network, Traffic
from scalewise.strategies.plan import Operation, Plan

INSTANT = 1e-12


def spans_of(operations: Sequence[Operation], starts: Sequence[float], ends: Sequence[float]) -> list[Span]:
    """Spans of a simulated step. Every rank's compute lane has no gaps: waiting has spans too."""
    computing: dict[int, list[int]] = defaultdict(list)
    touching: dict[int, list[int]] = defaultdict(list)
    spans: list[Span] = []
    transfers: list[int] = []
    for position, operation in enumerate(operations):
        if _is_transfer(operation):
            transfers.append(position)
        else:
            computing[operation.rank].append(position)
    ranks = sorted(computing)
    for position in transfers:
        operation, start = operations[position], starts[position]
        spans.append(Span(operation.rank, operation.phase, start, ends[position] - start, "network"))
        for rank in taking_part(operation, ranks):
            touching[rank].append(position)
    step_end = max(ends)
    for rank, positions in computing.items():
        waits = _Waits(operations, starts, ends, rank, touching[rank])
        now = 0.0
        for position in sorted(positions, key=lambda position: (starts[position], position)):
            spans += waits.between(now, starts[position], operations[position].after)
            spans.append(Span(rank, operations[position].phase, starts[position], ends[position] - starts[position]))
            now = ends[position]
        spans += waits.between(now, step_end, tuple(touching[rank]))
    return spans


class _Waits:
    """Reasons for which one rank waits."""

    def __init__(
        self,
        operations: Sequence[Operation],
        starts: Sequence[float],
        ends: Sequence[float],
        rank: int,
        touching: Sequence[int],
    ) -> None:
        self.operations, self.starts, self.ends = operations, starts, ends
        self.rank = rank
        self.touching = sorted(touching, key=starts.__getitem__)
        self.touching_starts = [starts[position] for position in self.touching]
        self.latest_ends = list(accumulate((ends[position] for position in self.touching), max))
        """Latest end of the transfers up to each one of `touching`."""

    def between(self, start: float, end: float, after: tuple[int, ...]) -> list[Span]:
        """Spans that name what the rank waited for between two times, latest first.

        Follows the dependencies in `after` backwards. Waiting for another rank's compute is idle time.
        """
        spans: list[Span] = []
        while end - start > INSTANT:
            before = max(after, key=self.ends.__getitem__, default=None)
            if before is None or self.ends[before] <= start:
                spans.append(Span(self.rank, self._blocking_phase(start, end), start, end - start))
                break
            operation = self.operations[before]
            since = max(start, self.starts[before])
            spans.append(Span(self.rank, operation.phase if _is_transfer(operation) else "idle", since, end - since))
            end, after = since, operation.after
        return spans

    def _blocking_phase(self, start: float, end: float) -> str:
        """Phase of the last transfer that kept the device busy while it waited for nothing."""
        at = bisect_left(self.touching_starts, end) - 1
        while at >= 0 and self.latest_ends[at] > start:
            if self.ends[self.touching[at]] > start:
                return self.operations[self.touching[at]].phase
            at -= 1
        return "idle"


def taking_part(operation: Operation, ranks: Sequence[int]) -> list[int]:
    """Select the ranks that take part in a transfer. `ranks` must be in ascending order."""
    if operation.send is None:
        participants = _ranks_of(operation)
        return [rank for rank in ranks if rank in participants]
    lower, upper = operation.send.source, operation.send.target
    if lower > upper:
        lower, upper = upper, lower
    first, end = bisect_left(ranks, lower), bisect_left(ranks, lower + operation.count)
    other = bisect_left(ranks, upper)
    return [*ranks[first:end], *ranks[other : other + (other < len(ranks) and ranks[other] == upper)]]


def _ranks_of(operation: Operation) -> range:
    collective = operation.collective
    if collective is None:
        return range(operation.rank, operation.rank + operation.count)
    return range(operation.rank, operation.rank + collective.stride * collective.ranks, collective.stride)


def _is_transfer(operation: Operation) -> bool:
    return operation.send is not None or operation.collective is not None


@dataclass(frozen=True)
class OverlapModel:
    """Effect of communication on compute that runs at the same time."""

    overlap: float
    """Fraction of a transfer's seconds that is hidden behind compute."""
    slowdown: float = 0.0
    """Seconds by which a second of transfers slows down compute, beyond the seconds that are not hidden."""
    most_slowdown: float = 0.05
    """Largest total slowdown, as a fraction of the step's compute."""
    source: str = ""
    """Origin of the figures."""


DDP = OverlapModel(
    0.5, 4.0, 0.05, "DDP on hosts of 4 x T4 (siasosp23/artifacts): half is hidden, compute slows by up to 5 %"
)
THREADS = OverlapModel(0.0, source="torch.nn.DataParallel on 4 x GTX 1080 Ti (E. Stevens 2020): nothing overlaps")
TENSORFLOW = OverlapModel(
    0.2, 4.0, 0.04, "tf_cnn_benchmarks 2017: 15 to 30 % is hidden, compute slows by up to 3 to 6 %"
)
SOCKETS = OverlapModel(1.0, source="gloo between CPU ranks: its cost to the cores is counted per byte")


def overlap_model_of(overlaps: bool, backend: str) -> OverlapModel:
    """Overlap model of an engine of Scalewise."""
    if not overlaps:
        return THREADS
    return SOCKETS if backend == "gloo" else DDP


Seconds = Callable[[str, int], float]
"""Function (phase, samples) -> seconds on one device."""


@dataclass(frozen=True)
class SimulatedStep:
    """A simulated step. Of represented ranks only the first appears."""

    operations: tuple[Operation, ...]
    starts: list[float]
    ends: list[float]

    @property
    def step_seconds(self) -> float:
        return max(self.ends)

    @property
    def transfer_seconds(self) -> float:
        """Seconds during which at least one transfer was in progress."""
        seconds, until = 0.0, 0.0
        transfers = (at for at, operation in enumerate(self.operations) if operation.send or operation.collective)
        for position in sorted(transfers, key=self.starts.__getitem__):
            seconds += max(0.0, self.ends[position] - max(until, self.starts[position]))
            until = max(until, self.ends[position])
        return seconds

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(tuple(spans_of(self.operations, self.starts, self.ends)))


class Simulator:
    """Simulation of plans on one network. The time of every collective is computed once."""

    def __init__(self, network: Network, overlap_model: OverlapModel, slow: Mapping[int, float] | None = None) -> None:
        self.network = network
        self.overlap_model = overlap_model
        self.slow = dict(slow or {})
        """Straggling ranks, with the fraction of a device's speed that each has."""
        device = network.cluster.devices[0]
        self.copy_seconds_per_byte = 1 / (device.copy_GBps * 1e9) if device.copy_GBps else 0.0
        self.transfers_block_devices = overlap_model.overlap < 1 or self.copy_seconds_per_byte > 0
        """Whether transfers take time from compute."""
        memory = network.cluster.link("host-device")
        self.devices_copy = memory is not None and memory.by_device
        """Whether the devices themselves copy between their memory and host memory."""
        beside = device.beside_memory if network.layout.workers > 1 else 1.0
        self.moved_seconds_per_byte = beside / (device.memory_GBps * 1e9)
        self.host_relays = network.cluster.has_gpus and network.cluster.backend == "gloo"
        """Whether GPUs exchange data through the host, which then cannot launch kernels ahead of time, so that every
        device call takes time. The costs were measured on slices of one GPU. With NCCL the host only starts
        transfers."""
        self.call_seconds = device.launch_us * 1e-6 if self.host_relays else 0.0
        host_GBps = network.cluster.host_GBps
        self.moved_on_host_seconds_per_byte = 1 / (host_GBps * 1e9) if host_GBps else self.moved_seconds_per_byte
        self._prices: dict[Collective, float] = {}
        self._through: dict[Collective, float] = {}
        self._paces: dict[tuple[int, int], float] = {}

    def simulate(
        self, plan: Plan, seconds: Seconds, launch_seconds: Callable[[str], float] = lambda _: 0.0
    ) -> SimulatedStep:
        """Simulate a step. `launch_seconds`: shortest time of a phase, also of layers that are split."""
        return _Step(self, plan, seconds, launch_seconds).run()

    def price(self, collective: Collective) -> float:
        if collective not in self._prices:
            network = self.network.among(collective.ranks, collective.stride, collective.groups)
            self._prices[collective] = collective_seconds(collective, network)
        return self._prices[collective]

    def through_rank(self, collective: Collective) -> float:
        """Bytes per rank that its CPU core copies during a collective; 0 if cores do not copy."""
        if not self.copy_seconds_per_byte:
            return 0.0
        if collective not in self._through:
            self._through[collective] = bytes_through_rank(collective)
        return self._through[collective]

    def pace(self, rank: int, count: int) -> float:
        """Compute time of the slowest of `count` ranks from `rank` on, relative to the profiled device."""
        if (rank, count) not in self._paces:
            self._paces[rank, count] = self._slowest(rank, count)
        return self._paces[rank, count]

    def _slowest(self, rank: int, count: int) -> float:
        layout, cluster = self.network.layout, self.network.cluster
        # The ranks of two hosts include every kind of device.
        examined = range(rank, min(rank + count, rank + 2 * cluster.devices_per_host))
        places = [place for place in map(layout.place_of, examined) if place is not None]
        peak = min((cluster.device_at(place).peak_TFLOPS for place in places), default=cluster.devices[0].peak_TFLOPS)
        straggling = max((1 / share for slow, share in self.slow.items() if rank <= slow < rank + count), default=1.0)
        return cluster.devices[0].peak_TFLOPS / peak * straggling


class _Step:
    """State of the simulation of one plan."""

    def __init__(
        self, simulator: Simulator, plan: Plan, seconds: Seconds, launch_seconds: Callable[[str], float]
    ) -> None:
        self.simulator = simulator
        self.operations = plan.operations
        self.seconds = seconds
        self.launch_seconds = launch_seconds
        self.traffic = Traffic(simulator.network, alone=True)
        self.device_free: dict[int, float] = defaultdict(float)
        self.group_free: dict[tuple[int, int], float] = defaultdict(float)
        """End of the latest collective of every group, by (first rank, stride); groups do not wait for each other."""
        self.starts = [0.0] * len(plan.operations)
        self.computing = sorted(
            {operation.rank for operation in plan.operations if not (operation.send or operation.collective)}
        )
        """Ranks that compute."""
        self.slowdown_left = self._most_slowdown()

    def _most_slowdown(self) -> dict[int, float]:
        """Seconds by which transfers may still slow down the compute of every rank."""
        model, left = self.simulator.overlap_model, dict[int, float]()
        if not model.slowdown or self.simulator.network.layout.workers == 1:
            return left
        for operation in self.operations:
            if not _is_transfer(operation):
                seconds = self.seconds(operation.phase, operation.samples) * operation.share
                left[operation.rank] = left.get(operation.rank, 0.0) + model.most_slowdown * seconds
        return left

    def run(self) -> SimulatedStep:
        ends = simulate_operations([operation.after for operation in self.operations], self._place)
        return SimulatedStep(self.operations, self.starts, ends)

    def _place(self, position: int, ready: float) -> float:
        operation = self.operations[position]
        if operation.collective:
            return self._exchange(position, operation, operation.collective, ready)
        if operation.send:
            return self._send(position, operation, operation.send, ready)
        self.starts[position] = start = max(ready, self.device_free[operation.rank])
        length = self._compute_seconds(operation)
        self.device_free[operation.rank] = end = start + length * self.simulator.pace(operation.rank, operation.count)
        return end

    def _compute_seconds(self, operation: Operation) -> float:
        """Seconds of a compute operation on a device as fast as the profiled one."""
        simulator = self.simulator
        length = self.seconds(operation.phase, operation.samples) * operation.share
        calls = operation.calls * simulator.call_seconds
        if not operation.called_share:
            length += calls
        elif simulator.host_relays:
            length = max(length, self.seconds(operation.phase, 1) * operation.called_share + calls)
        else:
            length = max(length, self.launch_seconds(operation.phase) * operation.called_share)
        if operation.host_work:
            step = sum(self.seconds(phase, operation.samples) for phase in ("forward", "backward"))
            length += operation.host_work.seconds(step) * simulator.network.cluster.host_factor
        on_host = operation.in_host_memory
        moved = simulator.moved_on_host_seconds_per_byte if on_host else simulator.moved_seconds_per_byte
        return length + operation.moved_bytes * moved

    def _exchange(self, position: int, operation: Operation, collective: Collective, ready: float) -> float:
        length = self.simulator.price(collective)
        group = operation.rank, collective.stride
        self.starts[position] = start = max(ready, self.group_free[group])
        self.group_free[group] = end = start + length
        if self.simulator.transfers_block_devices:
            through = self.simulator.through_rank(collective)
            for rank in taking_part(operation, self.computing):
                self._block_device(rank, start, length, through)
        return end

    def _send(self, position: int, operation: Operation, send: Send, ready: float) -> float:
        length = send.bytes * self.traffic.path(send).seconds_per_byte
        if self.simulator.devices_copy and not send.reply_bytes:
            return self._copy(position, send, ready, length)
        self.starts[position] = ready
        count, upper = operation.count, max(send.source, send.target)
        if self.simulator.transfers_block_devices:
            for rank in taking_part(operation, self.computing):
                times = count if rank == upper else 1
                self._block_device(rank, ready, times * length, times * send.bytes)
        return self.traffic.carry(send, ready) if count == 1 else self.traffic.carry_alike(send, count, ready)

    def _copy(self, position: int, send: Send, ready: float, length: float) -> float:
        """Place a copy between a device and host memory that the device itself makes."""
        rank = min(send.source, send.target)
        self.starts[position] = start = max(ready, self.device_free[rank])
        self.device_free[rank] = start + length
        return start + length

    def _block_device(self, rank: int, start: float, length: float, bytes: float) -> None:
        """Keep a device busy for the seconds of a transfer that do not overlap, and for copies by its own core."""
        model = self.simulator.overlap_model
        blocked = length * (1 - model.overlap) + bytes * self.simulator.copy_seconds_per_byte
        if model.slowdown:
            slowed = min(model.slowdown * length, self.slowdown_left.get(rank, 0.0))
            self.slowdown_left[rank] = self.slowdown_left.get(rank, 0.0) - slowed
            blocked += slowed
        self.device_free[rank] = max(self.device_free[rank], start) + blocked
