"""From one device's profile and a cluster to the seconds of a step there: with which strategy, why, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scalewise.clusters.cluster import Cluster
from scalewise.phases import BETWEEN_DEVICES
from scalewise.prediction.costs import Costs, Known
from scalewise.prediction.footprint import footprint_of
from scalewise.prediction.memory import memory_bytes
from scalewise.results.profile import ProfileDocument
from scalewise.simulation.conduct import Conduct, conduct_of
from scalewise.simulation.layout import Layout, packed
from scalewise.simulation.network import Network
from scalewise.simulation.simulate import Simulated, Simulator
from scalewise.strategies.strategy import Strategy

Bottleneck = Literal["network", "compute", "launch", "input", "memory", "idle"]

LINK_UNCERTAINTY = {"catalogue": 0.35, "fitted": 0.08, "measured": 0.08}
"""The 90 % interval of a transfer's seconds, as a part of them, by where the link's constants come from."""
COMPUTE_UNCERTAINTY = 0.05
"""The same for compute beside others, where a profile says what it takes alone."""


@dataclass(frozen=True)
class Prediction:
    """One cell, predicted. `low` and `high` are a 90 % interval of the step's seconds."""

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
    known: Known

    @property
    def network_seconds(self) -> float:
        return sum(seconds for phase, seconds in self.phases.items() if phase in BETWEEN_DEVICES)


class Predictor:
    """Many cells of one workload on one cluster."""

    def __init__(self, profile: ProfileDocument, cluster: Cluster, conduct: Conduct | None = None) -> None:
        self.profile = profile
        self.cluster = cluster
        self.costs = Costs(profile)
        self.footprint = footprint_of(profile)
        self._conduct = conduct
        self._simulators: dict[tuple[Layout, Conduct], Simulator] = {}

    def simulate(
        self,
        strategy: Strategy,
        devices: int,
        batch: int,
        layout: Layout | None = None,
        slow: Mapping[int, float] | None = None,
    ) -> Simulated:
        """One step, with its timeline."""
        layout = layout or packed(self.cluster, devices)
        conduct = self._conduct or conduct_of(getattr(strategy, "engine", None), self.cluster.backend)
        if slow:
            simulator = Simulator(Network(self.cluster, layout), conduct, slow)
        elif (layout, conduct) in self._simulators:
            simulator = self._simulators[layout, conduct]
        else:
            simulator = self._simulators[layout, conduct] = Simulator(Network(self.cluster, layout), conduct)
        plan = strategy.plan(self.footprint, devices, batch, self.cluster.backend)
        return simulator.simulate(plan, self.costs.seconds)

    def predict(self, strategy: Strategy, devices: int, batch: int, layout: Layout | None = None) -> Prediction:
        layout = layout or packed(self.cluster, devices)
        step = self.simulate(strategy, devices, batch, layout)
        seconds, phases = step.step_seconds, step.timeline.phases
        full, rest = divmod(self.profile.samples_per_epoch, batch)
        last = self.simulate(strategy, devices, rest, layout).step_seconds if rest else 0.0
        per_device = -(-batch // devices)
        below, above = self._reach(phases, per_device, devices)
        needed = memory_bytes(self.profile, self.costs, strategy, per_device)
        fits = needed <= min(device.memory_GB for device in self.cluster.devices) * 1e9
        epoch = full * seconds + last
        return Prediction(
            strategy=strategy,
            devices=devices,
            hosts=layout.hosts,
            batch=batch,
            batch_per_device=per_device,
            seconds=seconds,
            low=seconds * (1 - below),
            high=seconds * (1 + above),
            epoch_seconds=epoch,
            epoch_low=epoch * (1 - below),
            epoch_high=epoch * (1 + above),
            phases=phases,
            bottleneck=self._bottleneck(phases, per_device) if fits else "memory",
            memory_bytes=needed,
            fits=fits,
            known=self.costs.spread(per_device).known,
        )

    def _reach(self, phases: dict[str, float], per_device: int, devices: int) -> tuple[float, float]:
        """How far below and above the interval goes, as parts of the step: independent errors add up squared."""
        total = sum(phases.values())
        network = sum(seconds for phase, seconds in phases.items() if phase in BETWEEN_DEVICES)
        compute = sum(phases.get(phase, 0.0) for phase in ("forward", "backward", "update", "idle"))
        spread = self.costs.spread(per_device)
        alone = COMPUTE_UNCERTAINTY if devices > 1 else COMPUTE_UNCERTAINTY / 2
        link = LINK_UNCERTAINTY[self.cluster.knowledge]

        def reach(jump: float) -> float:
            return math.hypot(jump * compute, alone * total, link * network) / total

        return min(reach(1 - spread.low), 0.95), reach(spread.high - 1)

    def _bottleneck(self, phases: dict[str, float], per_device: int) -> Bottleneck:
        """Where most of the step goes. Compute that half the samples would not shorten is launching."""
        network = sum(seconds for phase, seconds in phases.items() if phase in BETWEEN_DEVICES)
        compute = sum(phases.get(phase, 0.0) for phase in ("forward", "loss", "backward", "update"))
        shares: dict[Bottleneck, float] = {
            "network": network,
            "compute": compute,
            "input": phases.get("load", 0.0),
            "idle": phases.get("idle", 0.0),
        }
        largest = max(shares, key=lambda name: shares[name])
        half = self.costs.compute_seconds(max(1, per_device // 2))
        if largest == "compute" and per_device > 1 and half > 0.85 * self.costs.compute_seconds(per_device):
            return "launch"
        return largest
