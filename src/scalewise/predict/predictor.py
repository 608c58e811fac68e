"""Predict the step time of a strategy on a cluster, with a 90 % interval.

The widths were chosen by looking at the published tables that `scalewise validate` scores, so their coverage is known
there only. Those of CPU ranks were chosen on two cores of a shared machine (benchmarks/predict_here.py), where a
single device differs from its own profile by 10 % in the median.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from statistics import fmean
from typing import Literal

from scalewise.core.timeline import BETWEEN_DEVICES, Span, Timeline
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.cluster import Cluster
from scalewise.predict.device_costs import CostOrigin, CostRange, Costs, DeviceSeconds, lone_phases
from scalewise.predict.memory import memory_bytes, memory_doubt_bytes, profile_footprint
from scalewise.predict.network import Layout, Network, in_use, packed
from scalewise.predict.simulator import OverlapModel, Seconds, SimulatedStep, Simulator, overlap_model_of
from scalewise.strategies.base import Strategy, batch_shares
from scalewise.strategies.plan import Plan

BOUNDED_ROUNDS, BOUNDED_SETTLED = 24, 4
"""Rounds of the slowest worker that are simulated, and how many of the first are not counted."""


def waits_of(cycles: Sequence[float], max_staleness: int) -> list[float]:
    """Mean seconds per round that each worker waits, given the seconds of its round without waiting (`cycles`).

    Pushes are applied as parameter servers do: at once, unless that would make the gradient of a worker that has not
    pushed yet too stale. In that case they wait for it, and are applied with it as one version. With a bound of 1 and
    a worker that takes four times as long:

    fast  |--push--|--push......|--push--|--push......|
    slow  |--------------------push------------------push
    """
    version, holding = 0, [0] * len(cycles)
    pending: dict[int, float] = {}
    waited, rounds = [0.0] * len(cycles), [0] * len(cycles)
    slowest, slowest_rounds = max(range(len(cycles)), key=cycles.__getitem__), 0
    pushes = [(cycle, worker) for worker, cycle in enumerate(cycles)]
    heapify(pushes)
    while slowest_rounds < BOUNDED_ROUNDS:
        now, worker = heappop(pushes)
        pending[worker] = now
        awaited = (held for other, held in enumerate(holding) if other not in pending)
        if any(version + 1 - held > max_staleness for held in awaited):
            continue
        version += 1
        counts = slowest_rounds >= BOUNDED_SETTLED
        slowest_rounds += slowest in pending
        for waiting_worker, arrived in pending.items():
            holding[waiting_worker] = version
            if counts:
                waited[waiting_worker] += now - arrived
                rounds[waiting_worker] += 1
            heappush(pushes, (now + cycles[waiting_worker], waiting_worker))
        pending.clear()
    return [seconds / count if count else 0.0 for seconds, count in zip(waited, rounds, strict=True)]


ROUNDS = 6
SETTLED = 2
"""First rounds that are not counted, because all workers push at the same time."""


@dataclass(frozen=True)
class AsynchronousRounds(SimulatedStep):
    """Several rounds (push and pull) of asynchronous workers.

    `step_seconds` is the time in which all workers together complete one round per worker. The rates of workers add
    up, so a worker that takes twice as long does half as much of the work.
    """

    workers: int = 1
    """Number of simulated workers."""
    rounds: int = ROUNDS
    """Simulated rounds of every worker."""
    stretch: float = 1.0
    """Factor on all times for workers that were not simulated but share the servers."""
    max_staleness: int | None = None
    """Largest staleness of an applied gradient; None: unbounded."""

    @cached_property
    def cycles(self) -> list[float]:
        """Seconds of a round of each worker, without waiting for other workers."""
        starts: dict[int, list[float]] = defaultdict(list)
        for position, operation in enumerate(self.operations):
            if operation.phase == "load" and operation.rank < self.workers:
                starts[operation.rank].append(self.starts[position])
        return [(times[-1] - times[SETTLED]) / (len(times) - 1 - SETTLED) for _, times in sorted(starts.items())]

    @cached_property
    def waits(self) -> list[float]:
        """Seconds of a round that each worker waits for others because of bounded staleness."""
        return [0.0] * len(self.cycles) if self.max_staleness is None else waits_of(self.cycles, self.max_staleness)

    @property
    def step_seconds(self) -> float:
        return self.stretch / fmean(1 / (cycle + wait) for cycle, wait in zip(self.cycles, self.waits, strict=True))

    @property
    def waited_seconds(self) -> float:
        """Part of `step_seconds` spent waiting for other workers."""
        return self.step_seconds - self.stretch / fmean(1 / cycle for cycle in self.cycles)

    @property
    def transfer_seconds(self) -> float:
        return super().transfer_seconds / self.rounds * self.stretch

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of all rounds; the rounds of the slowest worker are its steps."""
        length = max(self.ends) / self.rounds
        return Timeline(
            tuple(
                Span(span.rank, span.phase, span.start, span.seconds, span.lane, int(span.start / length))
                for span in super().timeline.spans
            )
        )


COMPUTE = ("forward", "loss", "backward", "update", "idle")
ALONE = {"nccl": 0.025, "gloo": 0.15}
"""Relative error of the step of one profiled device, by backend; gloo means CPU cores, which others use too."""
BESIDE_OTHERS = {"catalogue": 0.08, "fitted": 0.07, "measured": 0.05}
"""Relative error of the whole step on several devices of a host, by the origin of the link constants."""
LINK = {"catalogue": 0.35, "fitted": 0.15, "measured": 0.08}
"""Relative error of transfers within a host, by the origin of the link constants."""
IRREGULAR = 1.0
"""Relative error, upwards only, of transfers between a number of devices of a host that is no power of two, with
catalogue links: NCCL's rings then cross bridges unevenly, which halves the bandwidth of 3 of 4 RTX 2080 Ti."""
OVER_HOSTS = 0.1
"""Relative error of the whole step on several hosts."""
NETWORK = {"catalogue": 0.5, "fitted": 0.5, "measured": 0.2}
"""Relative error of transfers between hosts; a fit to one placement says little about others."""
UNEVEN = 0.35
"""Relative error, upwards only, of the step of a model that is split over devices, because real splits are uneven."""
CORES = 0.2
"""Smallest relative error of the whole step on several CPU cores."""
SOCKETS = 0.2
"""Smallest relative error of transfers between CPU cores."""
HOST_WORK = 0.4
"""Relative error of Python code on the host."""
HIDDEN = 0.6
"""Weight of transfers hidden behind compute, which become partly visible if they take longer."""


def interval_reach(step: SimulatedStep, spread: CostRange, cluster: Cluster, layout: Layout) -> tuple[float, float]:
    """Reach of the 90 % interval below and above the predicted step, as fractions of it.

    Errors are independent, so their squares are added.
    """
    phases = step.timeline.phases
    total = sum(phases.values())
    shown = sum(seconds for phase, seconds in phases.items() if phase in BETWEEN_DEVICES)
    # The timeline is that of the simulated workers; the others stretch all of it.
    stretch = step.stretch if isinstance(step, AsynchronousRounds) else 1.0
    network = shown + HIDDEN * max(0.0, step.transfer_seconds / stretch - shown)
    compute = sum(phases.get(phase, 0.0) for phase in COMPUTE)
    several = OVER_HOSTS if layout.hosts > 1 else BESIDE_OTHERS[cluster.knowledge]
    link = (NETWORK if layout.hosts > 1 else LINK)[cluster.knowledge]
    if cluster.backend == "gloo":
        several, link = max(several, CORES), max(link, SOCKETS)
    whole = ALONE[cluster.backend] if layout.workers == 1 else several
    uneven = UNEVEN if _is_split(step) else 0.0
    host = HOST_WORK * host_seconds(step)
    irregular = IRREGULAR if _is_irregular(cluster, layout) else 0.0

    def one_side(compute_error: float, split_error: float, link_error: float) -> float:
        errors = compute_error * compute, whole * total, link_error * network, host, split_error * total
        return math.hypot(*errors) / total

    return min(one_side(1 - spread.low, 0.0, link), 0.95), one_side(spread.high - 1, uneven, max(link, irregular))


def _is_irregular(cluster: Cluster, layout: Layout) -> bool:
    """Whether the bandwidth of a number of devices on one host is uncertain, because it is no power of two."""
    if layout.hosts > 1 or cluster.backend == "gloo" or cluster.knowledge != "catalogue":
        return False
    return layout.workers & (layout.workers - 1) != 0


def host_seconds(step: SimulatedStep) -> float:
    """Seconds in which rank 0 waits for Python code on the host."""
    return sum(step.ends[at] - step.starts[at] for at, operation in enumerate(step.operations) if operation.host_work)


def _is_split(step: SimulatedStep) -> bool:
    """Whether a rank computes only a part of the model."""
    shares: dict[int, float] = defaultdict(float)
    for operation in step.operations:
        if operation.phase == "forward":
            shares[operation.rank] += operation.share
    return min(shares.values(), default=1.0) < 1 - 1e-6


SCATTER = 1.12
"""Uncertainty factor of the ratio of two steps that were both predicted from a specification: most of the error is
common to all steps on one GPU and host, and 90 % of what remains is within 12 %."""

Bottleneck = Literal["network", "compute", "launch", "input", "memory", "idle"]
FOLLOWED = 16
"""Largest number of devices that are simulated individually."""
LAUNCHING = 0.85
"""A step is launch-bound if half the samples take more than this fraction of its compute time."""
COMPUTE_BOUND = 0.8
"""Scaling efficiency below which a step of several devices is named after communication if that takes more of
the step than what compute loses."""
BESIDE_LAUNCH = 0.25
"""A launch-bound step is network-bound if communication exceeds this fraction of its compute time."""


@dataclass(frozen=True)
class Prediction:
    """Predicted step and epoch of one strategy, number of devices and batch. `low` and `high` are a 90 % interval."""

    strategy: Strategy
    devices: int
    hosts: int
    batch: int
    batch_per_device: int
    seconds: float
    low: float
    high: float
    epoch_seconds: float
    epoch_low: float
    epoch_high: float
    phases: dict[str, float]
    bottleneck: Bottleneck
    memory_bytes: int
    fits: bool
    known: CostOrigin
    copied_seconds: float = 0.0
    """Part of the compute time that copies data only for communication, such as gradients into buckets."""
    common: tuple[float, float] = (1.0, 1.0)
    """Interval of the error factor of compute that all predictions from this specification share."""
    apart: tuple[float, float] = (0.0, 0.0)
    """Reach of the interval below and above without that common error, as fractions of the step."""

    @property
    def compute_fraction(self) -> float:
        """Fraction of the step that changes with the speed of the device."""
        return sum(self.phases.get(phase, 0.0) for phase in COMPUTE) / self.seconds

    @property
    def network_seconds(self) -> float:
        return sum(seconds for phase, seconds in self.phases.items() if phase in BETWEEN_DEVICES)


class Predictor:
    """Predictions for one profiled workload on one cluster.

    `overlap_model` replaces the one that belongs to the strategy and the backend.
    """

    def __init__(self, profile: ProfileDocument, cluster: Cluster, overlap_model: OverlapModel | None = None) -> None:
        self.profile = profile
        self.cluster = cluster
        self.costs = Costs(profile)
        self._device = DeviceSeconds(profile, self.costs, cluster)
        self.footprint = replace(profile_footprint(profile), on_gpu=cluster.has_gpus)
        self._memory_unknown = memory_doubt_bytes(profile, cluster) > 0
        self._overlap_model = overlap_model
        self._simulators: dict[tuple[Layout, OverlapModel], Simulator] = {}
        self._steps: dict[tuple[Strategy, int, int, Layout], float] = {}
        """Seconds of simulated steps, because the short last batch of an epoch is often the full batch of another."""
        self._memory: dict[tuple[Strategy, int, int], int] = {}
        """Peak memory by strategy, devices and batch per device."""

    def simulate(
        self,
        strategy: Strategy,
        devices: int,
        batch: int,
        layout: Layout | None = None,
        slow: Mapping[int, float] | None = None,
    ) -> SimulatedStep:
        """Simulate one step, or several rounds of asynchronous workers.

        `slow`: straggling ranks, with the fraction of a device's speed that each has.
        """
        layout = layout or packed(self.cluster, devices)
        if strategy.asynchronous and devices > 1:
            return self._steady(strategy, devices, batch, layout, slow, self._device.among(layout, strategy))
        plan = self._plan(strategy, devices, batch)
        alone = layout.workers == 1
        seconds = self._device.alone(strategy) if alone else self._device.among(layout, strategy, lone_phases(plan))
        return self._simulator(strategy, layout, slow).simulate(plan, seconds, self._device.launch_seconds)

    def _plan(self, strategy: Strategy, devices: int, batch: int) -> Plan:
        """Plan a step; of many devices, only some are planned and represent the others."""
        backend, strategy = self.cluster.backend, strategy.simulated(self.footprint)
        if devices > FOLLOWED:
            return strategy.plan_first(self.footprint, devices, batch, backend, FOLLOWED)
        return strategy.plan(self.footprint, devices, batch, backend)

    def _simulator(self, strategy: Strategy, layout: Layout, slow: Mapping[int, float] | None) -> Simulator:
        model = self._overlap_model or overlap_model_of(strategy.overlaps, self.cluster.backend)
        if slow:
            return Simulator(Network(self.cluster, layout), model, slow)
        if (layout, model) not in self._simulators:
            self._simulators[layout, model] = Simulator(Network(self.cluster, layout), model)
        return self._simulators[layout, model]

    def _steady(
        self,
        strategy: Strategy,
        devices: int,
        batch: int,
        layout: Layout,
        slow: Mapping[int, float] | None,
        seconds: Seconds,
    ) -> AsynchronousRounds:
        """Simulate asynchronous workers until their rate is steady.

        Of many workers only some are simulated. Every further worker adds as much to the total rate as the last
        simulated ones do, up to the rate that the servers can serve.
        """
        simulator = self._simulator(strategy, layout, slow)
        if devices <= FOLLOWED:
            return self._rounds(strategy, simulator, devices, batch, seconds)
        share = -(-batch // devices)
        half, most = (
            self._rounds(
                strategy, self._simulator(strategy, packed(self.cluster, count), slow), count, share * count, seconds
            )
            for count in (FOLLOWED // 2, FOLLOWED)
        )
        rate, rate_of_half = FOLLOWED / most.step_seconds, half.workers / half.step_seconds
        added = max(0.0, rate - rate_of_half) / (FOLLOWED - half.workers) * (devices - FOLLOWED)
        busy = self._serving_seconds(simulator, seconds("update", share)) / strategy.servers
        return replace(most, stretch=max(1.0, devices / min(rate + added, 1 / busy) / most.step_seconds))

    def _rounds(
        self, strategy: Strategy, simulator: Simulator, workers: int, batch: int, seconds: Seconds
    ) -> AsynchronousRounds:
        step = simulator.simulate(strategy.rounds(self.footprint, workers, batch, ROUNDS), seconds)
        return AsynchronousRounds(
            step.operations, step.starts, step.ends, workers, max_staleness=strategy.max_staleness
        )

    def _serving_seconds(self, simulator: Simulator, update: float) -> float:
        """Seconds per round for which one worker keeps a server process busy."""
        workers, size = simulator.network.layout.workers, sum(self.footprint.parameter_bytes)
        transfer = size * simulator.network.path(0, workers, sockets=True).seconds_per_byte
        blocked = transfer * (1 - simulator.overlap_model.overlap) + size * simulator.copy_seconds_per_byte
        return max(transfer, update * simulator.pace(workers, 1) + 2 * blocked)

    def predict(
        self, strategy: Strategy, devices: int, batch: int, layout: Layout | None = None, samples: int | None = None
    ) -> Prediction:
        """Predict a step and an epoch of `samples` samples, by default as many as in the profile."""
        layout = layout or packed(self.cluster, devices)
        step = self.simulate(strategy, devices, batch, layout)
        seconds, phases = step.step_seconds, self._worker_timeline(step, strategy, devices).phases
        # Rounds of asynchronous workers differ, so the mean round is divided like all of them together. With bounded
        # staleness, the time for which faster workers wait belongs to pull.
        waited = step.waited_seconds if isinstance(step, AsynchronousRounds) else 0.0
        phases = {phase: part * (seconds - waited) / sum(phases.values()) for phase, part in phases.items()}
        phases |= {"pull": phases.get("pull", 0.0) + waited} if waited else {}
        full, rest = divmod(samples or self.profile.samples_per_epoch, batch)
        self._steps[strategy, devices, batch, layout] = seconds
        shorter = batch if strategy.pads_last_batch else rest
        last = self._seconds(strategy, devices, shorter, layout) if rest else 0.0
        samples_at_once = max(operation.samples for operation in step.operations if operation.phase == "forward")
        spread = self.costs.spread(samples_at_once)
        below, above = interval_reach(step, spread, self.cluster, layout)
        is_common = spread.known == "specification"
        scatter = CostRange(1 / SCATTER, SCATTER, spread.known) if is_common else spread
        needed = self._memory_bytes(strategy, devices, batch)
        fits = self._has_memory(needed, layout)
        epoch = full * seconds + last
        copied = self._copied_seconds(step, strategy, layout)
        return Prediction(
            strategy=strategy,
            devices=devices,
            hosts=layout.hosts,
            batch=batch,
            batch_per_device=-(-batch // batch_shares(strategy, devices)),
            seconds=seconds,
            low=seconds * (1 - below),
            high=seconds * (1 + above),
            epoch_seconds=epoch,
            epoch_low=epoch * (1 - below),
            epoch_high=epoch * (1 + above),
            phases=phases,
            bottleneck=self._bottleneck(step, phases, devices, batch, samples_at_once, copied) if fits else "memory",
            memory_bytes=needed,
            fits=fits,
            known=spread.known,
            copied_seconds=copied,
            common=(spread.low, spread.high) if is_common else (1.0, 1.0),
            apart=interval_reach(step, scatter, self.cluster, layout),
        )

    def fits(self, strategy: Strategy, devices: int, batch: int) -> bool:
        """Whether a step fits in memory, without simulating it."""
        needed = self._memory_bytes(strategy, devices, batch)
        return self._has_memory(needed, packed(self.cluster, devices))

    def _memory_bytes(self, strategy: Strategy, devices: int, batch: int) -> int:
        key = strategy, devices, -(-batch // devices)
        if key not in self._memory:
            self._memory[key] = memory_bytes(self.profile, self.costs, strategy, key[2], devices, self.cluster)
        return self._memory[key]

    def _has_memory(self, needed: int, layout: Layout) -> bool:
        available = min(device.memory_GB for device, _ in in_use(self.cluster, max(layout.per_host))) * 1e9
        return needed <= available or self._memory_unknown

    def _seconds(self, strategy: Strategy, devices: int, batch: int, layout: Layout) -> float:
        step = strategy, devices, batch, layout
        if step not in self._steps:
            self._steps[step] = self.simulate(strategy, devices, batch, layout).step_seconds
        return self._steps[step]

    def _worker_timeline(self, step: SimulatedStep, strategy: Strategy, devices: int) -> Timeline:
        """Timeline of workers only; servers take as long, and rounding must not decide whose phases are reported."""
        if not strategy.servers:
            return step.timeline
        workers = step.workers if isinstance(step, AsynchronousRounds) else devices
        return Timeline(tuple(span for span in step.timeline.spans if span.rank < workers))

    def _bottleneck(
        self, step: SimulatedStep, phases: dict[str, float], devices: int, batch: int, samples: int, copied: float
    ) -> Bottleneck:
        """Largest part of the step, or of what it loses of linear scaling. Compute time that hardly depends on the
        number of samples counts as launch."""
        waited = sum(seconds for phase, seconds in phases.items() if phase in BETWEEN_DEVICES)
        compute = sum(phases.get(phase, 0.0) for phase in ("forward", "loss", "backward", "update"))
        # Phases of transfers include waiting for the sender's compute; only the transfers themselves are network time.
        network = min(waited, step.transfer_seconds) if waited else 0.0
        copied = min(compute, copied)
        host = host_seconds(step)
        shares: dict[Bottleneck, float] = {
            "network": network + copied,
            "compute": compute - copied,
            "input": phases.get("load", 0.0),
            "idle": max(0.0, phases.get("idle", 0.0) + waited - network - host),
            "launch": host,
        }
        largest = max(shares, key=lambda name: shares[name])
        ideal = self.costs.compute_seconds(batch) / devices
        if devices > 1 and largest == "compute" and ideal < COMPUTE_BOUND * sum(phases.values()):
            losses: dict[Bottleneck, float] = {
                "compute": max(0.0, compute - copied - ideal),
                "network": shares["network"],
                "launch": host,
            }
            largest = max(losses, key=lambda name: losses[name])
        many = max(samples, 2)  # one sample has no half
        launching = self.costs.compute_seconds(many // 2) > LAUNCHING * self.costs.compute_seconds(many)
        launching = launching and not (self.cluster.has_gpus and self._device.is_streaming(samples))
        if largest == "compute" and launching and phases.get("update", 0.0) < compute / 2:
            return "network" if shares["network"] > BESIDE_LAUNCH * shares["compute"] else "launch"
        return largest

    def _copied_seconds(self, step: SimulatedStep, strategy: Strategy, layout: Layout) -> float:
        if layout.workers == 1:
            return 0.0
        simulator = self._simulator(strategy, layout, None)
        rounds = step.rounds if isinstance(step, AsynchronousRounds) else 1
        copied = sum(operation.moved_bytes for operation in step.operations if operation.rank == 0) / rounds
        return copied * simulator.moved_seconds_per_byte * simulator.pace(0, 1)
