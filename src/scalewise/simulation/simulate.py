"""One step of a plan on a network: when each operation runs, given that devices and links do one thing at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from scalewise.collectives.collective import Collective
from scalewise.collectives.send import Send
from scalewise.plan import Operation, Plan
from scalewise.simulation.conduct import Conduct
from scalewise.simulation.network import Network, Traffic
from scalewise.simulation.price import bytes_through_rank, collective_seconds
from scalewise.simulation.queues import run
from scalewise.simulation.spans import spans_of, taking_part
from scalewise.timeline import Timeline

Seconds = Callable[[str, int], float]
"""(phase, samples) -> seconds on a device alone."""


@dataclass(frozen=True)
class Simulated:
    """A step as simulated. Ranks that are alike appear once, under the first of them."""

    operations: tuple[Operation, ...]
    starts: list[float]
    ends: list[float]

    @property
    def step_seconds(self) -> float:
        return max(self.ends)

    @property
    def transfer_seconds(self) -> float:
        """In which something was under way between ranks."""
        seconds, until = 0.0, 0.0
        transfers = (at for at, each in enumerate(self.operations) if each.send or each.collective)
        for position in sorted(transfers, key=self.starts.__getitem__):
            seconds += max(0.0, self.ends[position] - max(until, self.starts[position]))
            until = max(until, self.ends[position])
        return seconds

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(tuple(spans_of(self.operations, self.starts, self.ends)))


class Simulator:
    """Many plans over one network: what a collective costs there is found once."""

    def __init__(self, network: Network, conduct: Conduct, slow: Mapping[int, float] | None = None) -> None:
        self.network = network
        self.conduct = conduct
        self.slow = dict(slow or {})
        """Straggling ranks, and the part of a device that each has."""
        device = network.cluster.devices[0]
        self.copy_seconds_per_byte = 1 / (device.copy_GBps * 1e9) if device.copy_GBps else 0.0
        self.costs_devices = conduct.overlap < 1 or self.copy_seconds_per_byte > 0
        """Whether transfers take any of the devices' time."""
        memory = network.cluster.link("host-device")
        self.devices_copy = memory is not None and memory.by_device
        """Whether transfers that no socket carries are made by the devices themselves."""
        beside = device.beside_memory if network.layout.workers > 1 else 1.0
        self.moved_seconds_per_byte = beside / (device.memory_GBps * 1e9)
        self.is_called = network.cluster.has_gpus and network.cluster.backend == "gloo"
        """By a host that hands over what GPUs exchange: it is never ahead of them, and each of its calls counts. What
        that costs was measured on slices of one GPU; with NCCL a host only starts what GPUs do between themselves."""
        self.call_seconds = device.launch_us * 1e-6 if self.is_called else 0.0
        hosts = network.cluster.host_GBps
        self.moved_on_host_seconds_per_byte = 1 / (hosts * 1e9) if hosts else self.moved_seconds_per_byte
        self._prices: dict[Collective, float] = {}
        self._through: dict[Collective, float] = {}
        self._paces: dict[tuple[int, int], float] = {}

    def simulate(self, plan: Plan, seconds: Seconds) -> Simulated:
        return _Step(self, plan, seconds).run()

    def price(self, collective: Collective) -> float:
        if collective not in self._prices:
            network = self.network.among(collective.ranks, collective.stride, collective.groups)
            self._prices[collective] = collective_seconds(collective, network)
        return self._prices[collective]

    def through_rank(self, collective: Collective) -> float:
        """Bytes that its cores copy, where they do."""
        if not self.copy_seconds_per_byte:
            return 0.0
        if collective not in self._through:
            self._through[collective] = bytes_through_rank(collective)
        return self._through[collective]

    def pace(self, rank: int, count: int) -> float:
        """How many times longer the slowest of these ranks takes than the device that was profiled."""
        if (rank, count) not in self._paces:
            self._paces[rank, count] = self._slowest(rank, count)
        return self._paces[rank, count]

    def _slowest(self, rank: int, count: int) -> float:
        layout, cluster = self.network.layout, self.network.cluster
        # Two hosts' worth of ranks hold every kind of device there is.
        some = range(rank, min(rank + count, rank + 2 * cluster.devices_per_host))
        places = [place for place in map(layout.place_of, some) if place is not None]
        peak = min((cluster.device_at(place).peak_TFLOPS for place in places), default=cluster.devices[0].peak_TFLOPS)
        held_up = max((1 / share for slow, share in self.slow.items() if rank <= slow < rank + count), default=1.0)
        alone = layout.workers == 1
        return cluster.devices[0].peak_TFLOPS / peak * held_up * (1.0 if alone else self.conduct.slowdown)


class _Step:
    """The state of one simulation."""

    def __init__(self, simulator: Simulator, plan: Plan, seconds: Seconds) -> None:
        self.simulator = simulator
        self.operations = plan.operations
        self.seconds = seconds
        self.traffic = Traffic(simulator.network, alone=True)
        self.device_free: dict[int, float] = defaultdict(float)
        self.group_free: dict[tuple[int, int], float] = defaultdict(float)
        """By the first rank of a group and its stride: different groups do not wait for each other."""
        self.starts = [0.0] * len(plan.operations)
        self.computing = sorted({each.rank for each in plan.operations if not (each.send or each.collective)})

    def run(self) -> Simulated:
        ends = run([operation.after for operation in self.operations], self._place)
        return Simulated(self.operations, self.starts, ends)

    def _place(self, position: int, ready: float) -> float:
        operation = self.operations[position]
        if operation.collective:
            return self._exchange(position, operation, operation.collective, ready)
        if operation.send:
            return self._send(position, operation, operation.send, ready)
        self.starts[position] = start = max(ready, self.device_free[operation.rank])
        length = self._length(operation)
        self.device_free[operation.rank] = end = start + length * self.simulator.pace(operation.rank, operation.count)
        return end

    def _length(self, operation: Operation) -> float:
        """Of compute, on a device as fast as the profiled one."""
        simulator = self.simulator
        length = self.seconds(operation.phase, operation.samples) * operation.share
        calls = operation.calls * simulator.call_seconds
        if not operation.called_share:
            length += calls
        elif simulator.is_called:
            length = max(length, self.seconds(operation.phase, 1) * operation.called_share + calls)
        on_host = operation.in_host_memory
        moved = simulator.moved_on_host_seconds_per_byte if on_host else simulator.moved_seconds_per_byte
        return length + operation.moved_bytes * moved

    def _exchange(self, position: int, operation: Operation, collective: Collective, ready: float) -> float:
        length = self.simulator.price(collective)
        group = operation.rank, collective.stride
        self.starts[position] = start = max(ready, self.group_free[group])
        self.group_free[group] = end = start + length
        if self.simulator.costs_devices:
            through = self.simulator.through_rank(collective)
            for rank in taking_part(operation, self.computing):
                self._take(rank, start, length, through)
        return end

    def _send(self, position: int, operation: Operation, send: Send, ready: float) -> float:
        length = send.bytes * self.traffic.path(send).seconds_per_byte
        if self.simulator.devices_copy and not send.reply_bytes:
            return self._copy(position, send, ready, length)
        self.starts[position] = ready
        count, upper = operation.count, max(send.source, send.target)
        if self.simulator.costs_devices:
            for rank in taking_part(operation, self.computing):
                times = count if rank == upper else 1
                self._take(rank, ready, times * length, times * send.bytes)
        return self.traffic.carry(send, ready) if count == 1 else self.traffic.carry_alike(send, count, ready)

    def _copy(self, position: int, send: Send, ready: float, length: float) -> float:
        """Between a device and its host's memory, by the device itself."""
        rank = min(send.source, send.target)
        self.starts[position] = start = max(ready, self.device_free[rank])
        self.device_free[rank] = start + length
        return start + length

    def _take(self, rank: int, start: float, length: float, bytes: float) -> None:
        """A transfer costs the device the seconds that do not overlap, and those that its own cores copy."""
        taken = length * (1 - self.simulator.conduct.overlap) + bytes * self.simulator.copy_seconds_per_byte
        self.device_free[rank] = max(self.device_free[rank], start) + taken
