"""Compute time of one device at any batch, alone and while other devices of its host are busy."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.hardware.cluster import Cluster, Device
from scalewise.predict.network import Layout
from scalewise.predict.simulator import Seconds
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Plan

CostOrigin = Literal["measured", "interpolated", "extrapolated", "scaled", "specification"]
COMPUTE = ("forward", "backward", "update")
ABOVE = (0.8, 1.25)
"""Uncertainty factors for batches above the profiled ones: better utilization, or caches that are too small."""
LONE, LEAST_OFF = (0.6, 2.0), 3.0
"""Uncertainty factors for batches below a single profiled one: of the step (from 20 to 10 clips the study's steps fall
to 0.7 of proportional), and of the estimated shortest step."""


@dataclass(frozen=True)
class CostRange:
    """Range of a device's compute time, as factors of the expected time."""

    low: float
    high: float
    known: CostOrigin
    """Origin of the expected time."""


class Costs:
    """Times of a profile as functions of the batch."""

    def __init__(self, profile: ProfileDocument) -> None:
        self.profile = profile
        self.steps = sorted(profile.steps, key=lambda step: step.batch)
        self.batches = [step.batch for step in self.steps]
        self._seconds: dict[tuple[str, int], float] = {}

    def seconds(self, phase: str, samples: int) -> float:
        """Seconds of a phase. An empty share computes one sample, and forward includes the loss."""
        if phase not in ("load", *COMPUTE):
            return 0.0
        key = (phase, max(samples, 1))
        if key not in self._seconds:
            self._seconds[key] = self._seconds_at(phase, key[1])
        return self._seconds[key]

    def busy_seconds(self, phase: str, samples: int) -> float:
        """Part of `seconds` in which the device is busy, without waiting for kernel launches.

        The seconds per sample at the largest profiled batch are taken as launch-free.
        """
        if len(self.steps) == 1:
            return self.seconds(phase, samples)
        largest = self.steps[-1].batch
        return min(self.seconds(phase, samples), self.seconds(phase, largest) / largest * samples)

    def compute_seconds(self, samples: int) -> float:
        return sum(self.seconds(phase, samples) for phase in COMPUTE)

    def _seconds_at(self, phase: str, batch: int) -> float:
        """Interpolate between profiled batches.

        Below the smallest profiled batch only loading gets faster. A single profiled batch is assumed to keep the
        device busy, so that times are proportional to the batch, down to the profile's estimate of the shortest step.
        Batches below several given ones are treated in the same way.
        """
        first, last = self.steps[0], self.steps[-1]
        if first is last and phase != "update":
            least = 0.0 if phase == "load" else min(self.profile.least_seconds / (_compute(first) or 1.0), 1.0)
            return getattr(first, phase) * max(batch / first.batch, least)  # type: ignore[no-any-return]
        if batch <= first.batch and self.profile.least_seconds and phase in ("forward", "backward"):
            least = min(self.profile.least_seconds / (_compute(first) or 1.0), 1.0)
            return getattr(first, phase) * max(batch / first.batch, least)  # type: ignore[no-any-return]
        if batch <= first.batch:
            return getattr(first, phase) * (batch / first.batch if phase == "load" else 1.0)  # type: ignore[no-any-return]
        if batch >= last.batch:
            return getattr(last, phase) * (1.0 if phase == "update" else batch / last.batch)  # type: ignore[no-any-return]
        below, above = self._around(batch)
        part = (batch - below.batch) / (above.batch - below.batch)
        return getattr(below, phase) * (1 - part) + getattr(above, phase) * part  # type: ignore[no-any-return]

    def _around(self, batch: int) -> tuple[StepCost, StepCost]:
        place = min(max(bisect_left(self.batches, batch), 1), len(self.batches) - 1)
        return self.steps[place - 1], self.steps[place]

    def spread(self, samples: int) -> CostRange:
        """Uncertainty of the compute at this batch; wider if the profile was predicted or scaled."""
        spread = self._profiled_spread(samples)
        batch = max(samples, 1)
        nearest = [self.steps[self.batches.index(batch)]] if batch in self.batches else self._nearest(batch)
        low, high = min(step.uncertainty[0] for step in nearest), max(step.uncertainty[1] for step in nearest)
        if (low, high) == (1.0, 1.0):
            return spread
        known: CostOrigin = "scaled" if self.profile.quality == "scaled" else "specification"
        return CostRange(spread.low * low, spread.high * high, known)

    def _nearest(self, batch: int) -> Sequence[StepCost]:
        """Profiled steps on both sides of this batch."""
        return self.steps if len(self.steps) == 1 else self._around(batch)

    def _profiled_spread(self, samples: int) -> CostRange:
        """Uncertainty of the compute time, which is large between batches with different seconds per sample, and
        outside of the profiled batches.

        Between two profiled batches, the range is given by the seconds per sample of both, but not below the smaller
        batch's whole step. Below the smallest batch, it is from proportional to unchanged.
        """
        batch = max(samples, 1)
        if batch in self.batches:
            return CostRange(1.0, 1.0, "measured")
        expected = self.compute_seconds(batch)
        if expected == 0:
            return CostRange(1.0, 1.0, "interpolated")
        if batch < self.batches[0]:
            proportional, whole = _compute(self.steps[0]) * batch / self.batches[0], _compute(self.steps[0])
            if least := self.profile.least_seconds:
                low = min(max(proportional, least / LEAST_OFF), LONE[0] * expected)
                high = min(whole, max(LONE[1] * expected, LEAST_OFF * least))
                return CostRange(low / expected, max(high / expected, self.uncertain_above), "extrapolated")
            return CostRange(
                min(proportional, 0.9 * expected) / expected,
                max(whole / expected, self.uncertain_above),
                "extrapolated",
            )
        if batch > self.batches[-1]:
            # The step of a single profiled batch may be all kernel launches, so a larger batch may take no longer.
            may_be_idle = len(self.steps) == 1 and self.profile.least_seconds >= _compute(self.steps[0])
            low = min(ABOVE[0], _compute(self.steps[0]) / expected) if may_be_idle else ABOVE[0]
            return CostRange(low, ABOVE[1], "extrapolated")
        below, above = self._around(batch)
        by_sample = sorted(_compute(step) / step.batch * batch for step in (below, above))
        floor, ceiling = sorted((_compute(below), _compute(above)))
        low, high = max(by_sample[0], floor), min(by_sample[1], ceiling)
        return CostRange(min(low / expected, 1.0), max(high / expected, 1.0), "interpolated")

    @cached_property
    def uncertain_above(self) -> float:
        """Uncertainty factor upwards below the profiled batches: the largest relative rise in seconds per sample."""
        costs = [_compute(step) / step.batch for step in self.steps]
        jumps = [max(later / earlier, 1.0) for earlier, later in pairwise(costs)]
        return max([1.1, *jumps])


def _compute(step: StepCost) -> float:
    return step.forward + step.backward + step.update


PASSES = {"forward": 1, "backward": 3, "update": 7}
"""Passes of a phase over memory of the size of the parameters: backward reads weights, writes gradients and adds them;
Adam reads four numbers and writes three per parameter."""
MOST_CHANGES = 64
"""Largest number of changes between devices within a phase that are checked; a phase with more is not `lone`."""


def slowdown(device: Device, parameter_bytes: int, phase: str, seconds: float) -> float:
    """Factor by which a phase slows down while other devices of the host are busy.

    The part of `seconds` that streams through memory slows down by `beside_memory`, the rest by `beside_compute`.
    """
    if seconds <= 0:
        return 1.0
    streaming = PASSES.get(phase, 0) * parameter_bytes / (device.memory_GBps * 1e9)
    part = min(1.0, streaming / seconds)
    return part * device.beside_memory + (1 - part) * device.beside_compute


def lone_phases(plan: Plan) -> frozenset[str]:
    """Phases in which only one device computes at a time.

    Examples are the update on the default device or on a single server, and passes through stages without
    micro-batches.
    """
    at: dict[str, list[int]] = defaultdict(list)
    for number, operation in enumerate(plan.operations):
        if not (operation.send or operation.collective):
            at[operation.phase].append(number)
    return frozenset(phase for phase, numbers in at.items() if _never_at_once(plan, numbers))


def _never_at_once(plan: Plan, numbers: list[int]) -> bool:
    if any(plan.operations[number].count > 1 for number in numbers):
        return False
    changes = [
        (earlier, later)
        for earlier, later in pairwise(numbers)
        if plan.operations[earlier].rank != plan.operations[later].rank
    ]
    return len(changes) <= MOST_CHANGES and all(_follows(plan, later, earlier) for earlier, later in changes)


def _follows(plan: Plan, later: int, earlier: int) -> bool:
    """Whether operation `later` waits for operation `earlier`, directly or not."""
    visited, stack = set[int](), [later]
    while stack:
        number = stack.pop()
        if number == earlier:
            return True
        if number > earlier and number not in visited:
            visited.add(number)
            stack.extend(plan.operations[number].after)
    return False


UPDATE_PASSES = 7
"""Numbers that Adam reads (four) and writes (three) per parameter."""


def updates_on_host(strategy: Strategy, cluster: Cluster) -> bool:
    """Whether the optimizer runs in host memory while the devices are GPUs."""
    return strategy.updates_on_host and cluster.has_gpus


class DeviceSeconds:
    """Compute times of a profiled workload on the devices of a cluster."""

    def __init__(self, profile: ProfileDocument, costs: Costs, cluster: Cluster) -> None:
        self.profile, self.costs, self.cluster = profile, costs, cluster

    def launch_seconds(self, phase: str) -> float:
        """Shortest time of a phase on a GPU, in which the host launches its kernels; 0 if it is not known.

        Layers that are split between devices launch as many kernels, so they take no less.
        """
        first = self.costs.steps[0]
        if not self.cluster.has_gpus or phase not in COMPUTE:
            return 0.0
        least = float(getattr(first, phase))
        if len(self.costs.steps) == 1:
            return least * min(self.profile.least_seconds / (_compute(first) or 1.0), 1.0)
        is_launching = least > 2 * (self.costs.busy_seconds(phase, first.batch) + self._streaming_seconds(phase))
        return least if is_launching else 0.0

    def is_streaming(self, samples: int) -> bool:
        """Whether a step mostly reads and writes memory of the size of the parameters, whatever the batch."""
        return sum(map(self._streaming_seconds, COMPUTE)) > self.costs.compute_seconds(samples) / 2

    def _streaming_seconds(self, phase: str) -> float:
        """Seconds in which a phase reads and writes parameters, gradients and optimizer state."""
        return PASSES[phase] * self.profile.parameter_bytes / (self.cluster.devices[0].memory_GBps * 1e9)

    def alone(self, strategy: Strategy) -> Seconds:
        return self._with_host if updates_on_host(strategy, self.cluster) else self.costs.seconds

    def among(self, layout: Layout, strategy: Strategy, lone: frozenset[str] = frozenset()) -> Seconds:
        """Seconds on one of several devices of a layout. In `lone` phases only one device computes at a time."""
        together = self._in_step.get((layout.workers, layout.hosts)) or self._in_step.get((max(layout.per_host), 1))
        alone = self._in_step.get((1, 1))
        if not (together and alone):
            return self._beside_siblings(self.alone(strategy), lone)
        on_host = {"update"} if updates_on_host(strategy, self.cluster) else set[str]()

        def in_step(phase: str, samples: int) -> float:
            if phase in on_host:
                return self._with_host(phase, samples)
            return (alone if phase in lone else together).seconds(phase, samples)

        return in_step

    @cached_property
    def _in_step(self) -> dict[tuple[int, int], Costs]:
        """Times of devices that compute at the same time, by their number and that of their hosts, as far as they were
        measured."""
        return {
            (entry.devices, entry.hosts): Costs(self.profile.model_copy(update={"steps": entry.steps}))
            for entry in self.profile.in_step
        }

    def _beside_siblings(self, seconds: Seconds, lone: frozenset[str]) -> Seconds:
        """Apply the cluster's slowdown factors for busy devices to seconds that were measured on one device alone."""
        device, size = self.cluster.devices[0], self.profile.parameter_bytes

        def slowed(phase: str, samples: int) -> float:
            alone = seconds(phase, samples)
            if phase in lone:
                return alone
            beside = alone * slowdown(device, size, phase, alone)
            if not self.cluster.has_gpus or not alone:
                return beside
            # Siblings slow down the device, not kernel launches by the host.
            return max(alone, beside * self._busy_seconds(phase, samples) / alone)

        return slowed

    def _busy_seconds(self, phase: str, samples: int) -> float:
        if phase == "update":
            return UPDATE_PASSES * self.profile.parameter_bytes / (self.cluster.devices[0].memory_GBps * 1e9)
        return self.costs.busy_seconds(phase, samples)

    def _with_host(self, phase: str, samples: int) -> float:
        if phase == "update":
            assert self.cluster.host_GBps is not None
            return UPDATE_PASSES * self.profile.parameter_bytes / (self.cluster.host_GBps * 1e9)
        return self.costs.seconds(phase, samples)
