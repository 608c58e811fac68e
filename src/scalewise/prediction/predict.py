"""From one device's profile and a cluster to the seconds of a step there: with which strategy, why, and how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.clusters.cluster import Cluster
from scalewise.phases import BETWEEN_DEVICES
from scalewise.plan import Plan
from scalewise.prediction.costs import Costs, Known
from scalewise.prediction.device_seconds import DeviceSeconds
from scalewise.prediction.footprint import footprint_of
from scalewise.prediction.interval import reach
from scalewise.prediction.memory import memory_bytes
from scalewise.prediction.siblings import lone_phases
from scalewise.results.profile import ProfileDocument
from scalewise.simulation.conduct import Conduct, conduct_of
from scalewise.simulation.layout import Layout, in_use, packed
from scalewise.simulation.network import Network
from scalewise.simulation.simulate import Seconds, Simulated, Simulator
from scalewise.simulation.steady import ROUNDS, Steady
from scalewise.strategies.alike_workers import alike_workers_plan
from scalewise.strategies.data_parallel import DataParallel
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.registry import STRATEGIES
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy, batch_shares, servers_of
from scalewise.timeline import Timeline

Bottleneck = Literal["network", "compute", "launch", "input", "memory", "idle"]
FOLLOWED = 16
"""Devices that are simulated one by one, at most, where they are workers of a server or a root, or of a hybrid."""
LAUNCHING = 0.85
"""Half the samples taking more than this part of the seconds: the device waits to be told what to do."""
BESIDE_LAUNCH = 0.25
"""Communication of more than this part of the compute is what holds up several devices that launch no faster."""


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
    copied_seconds: float = 0.0
    """Of compute, what only communication needs: gradients put where they leave from."""

    @property
    def network_seconds(self) -> float:
        return sum(seconds for phase, seconds in self.phases.items() if phase in BETWEEN_DEVICES)


class Predictor:
    """Many cells of one workload on one cluster."""

    def __init__(self, profile: ProfileDocument, cluster: Cluster, conduct: Conduct | None = None) -> None:
        self.profile = profile
        self.cluster = cluster
        self.costs = Costs(profile)
        self._device = DeviceSeconds(profile, self.costs, cluster)
        self.footprint = replace(footprint_of(profile), on_gpu=cluster.has_gpus)
        self._conduct = conduct
        self._simulators: dict[tuple[Layout, Conduct], Simulator] = {}
        self._steps: dict[tuple[Strategy, int, int, Layout], float] = {}
        """Seconds of those simulated: the short last one of an epoch is often another's full one."""

    def simulate(
        self,
        strategy: Strategy,
        devices: int,
        batch: int,
        layout: Layout | None = None,
        slow: Mapping[int, float] | None = None,
    ) -> Simulated:
        """One step, with its timeline; of workers that wait for nobody, many."""
        layout = layout or packed(self.cluster, devices)
        here = max(layout.per_host)
        if isinstance(strategy, ParameterServerAsync) and not strategy.exact and devices > 1:
            return self._steady(strategy, devices, batch, layout, slow, self._device.among(here, strategy.name))
        plan = self._plan(strategy, devices, batch)
        alone = layout.workers == 1
        seconds = (
            self._device.alone(strategy.name) if alone else self._device.among(here, strategy.name, lone_phases(plan))
        )
        return self._simulator(strategy, layout, slow).simulate(plan, seconds)

    def _plan(self, strategy: Strategy, devices: int, batch: int) -> Plan:
        """Of many devices that are alike, or groups of them, the first are planned."""
        backend = self.cluster.backend
        if isinstance(strategy, Hybrid) and devices > FOLLOWED:
            return strategy.plan_first(self.footprint, devices, batch, backend, FOLLOWED)
        if isinstance(strategy, DataParallel) and strategy.engine == "ranks" and devices > FOLLOWED:
            return alike_workers_plan(self.footprint, devices, batch, backend)
        return strategy.plan(self.footprint, devices, batch, backend)

    def _simulator(self, strategy: Strategy, layout: Layout, slow: Mapping[int, float] | None) -> Simulator:
        conduct = self._conduct or conduct_of(getattr(strategy, "engine", None), self.cluster.backend)
        if slow:
            return Simulator(Network(self.cluster, layout), conduct, slow)
        if (layout, conduct) not in self._simulators:
            self._simulators[layout, conduct] = Simulator(Network(self.cluster, layout), conduct)
        return self._simulators[layout, conduct]

    def _steady(
        self,
        strategy: ParameterServerAsync,
        devices: int,
        batch: int,
        layout: Layout,
        slow: Mapping[int, float] | None,
        seconds: Seconds,
    ) -> Steady:
        """Of many workers some are followed: what the last of these add to the pace of all, others add, too, as long as
        the servers keep up."""
        simulator = self._simulator(strategy, layout, slow)
        if devices <= FOLLOWED:
            return self._rounds(strategy, simulator, devices, batch, seconds)
        each = -(-batch // devices)
        simulators = [self._simulator(strategy, packed(self.cluster, few), slow) for few in (FOLLOWED // 2, FOLLOWED)]
        fewer, found = (
            self._rounds(strategy, one, one.network.layout.workers, each * one.network.layout.workers, seconds)
            for one in simulators
        )
        pace, before = FOLLOWED / found.step_seconds, fewer.workers / fewer.step_seconds
        added = max(0.0, pace - before) / (FOLLOWED - fewer.workers) * (devices - FOLLOWED)
        busy = self._serving_seconds(simulator, seconds("update", each)) / strategy.servers
        return replace(found, stretch=max(1.0, devices / min(pace + added, 1 / busy) / found.step_seconds))

    def _rounds(
        self, strategy: ParameterServerAsync, simulator: Simulator, workers: int, batch: int, seconds: Seconds
    ) -> Steady:
        step = simulator.simulate(strategy.rounds(self.footprint, workers, batch, ROUNDS), seconds)
        return Steady(step.operations, step.starts, step.ends, workers, max_staleness=strategy.max_staleness)

    def _serving_seconds(self, simulator: Simulator, update: float) -> float:
        """That a worker keeps the process of a server busy for, in a round."""
        workers, size = simulator.network.layout.workers, sum(self.footprint.parameter_bytes)
        passing = size * simulator.network.path(0, workers, sockets=True).seconds_per_byte
        taken = passing * (1 - simulator.conduct.overlap) + size * simulator.copy_seconds_per_byte
        return max(passing, update * simulator.pace(workers, 1) + 2 * taken)

    def predict(
        self, strategy: Strategy, devices: int, batch: int, layout: Layout | None = None, samples: int | None = None
    ) -> Prediction:
        """`samples` make an epoch; the profile's if not given."""
        layout = layout or packed(self.cluster, devices)
        step = self.simulate(strategy, devices, batch, layout)
        seconds, phases = step.step_seconds, self._of_workers(step, strategy, devices).phases
        # Rounds of workers that wait for nobody are not all alike; their phases are shared out as in the mean. Where
        # staleness is bounded, who is ahead waits for its pull.
        waited = step.waited_seconds if isinstance(step, Steady) else 0.0
        phases = {phase: part * (seconds - waited) / sum(phases.values()) for phase, part in phases.items()}
        phases |= {"pull": phases.get("pull", 0.0) + waited} if waited else {}
        full, rest = divmod(samples or self.profile.samples_per_epoch, batch)
        self._steps[strategy, devices, batch, layout] = seconds
        # A pipeline fills up its last batch to as many micro-batches.
        shorter = batch if isinstance(strategy, Pipeline) else rest
        last = self._seconds(strategy, devices, shorter, layout) if rest else 0.0
        per_device = -(-batch // devices)
        worked_on = max(each.samples for each in step.operations if each.phase == "forward")
        spread = self.costs.spread(worked_on)
        below, above = reach(step, spread, self.cluster, layout)
        # Strategies of published tables, which nobody runs here, are counted as one device.
        held = strategy if strategy.name in STRATEGIES else Single()
        needed = memory_bytes(self.profile, self.costs, held, per_device, devices, self.cluster)
        fits = needed <= min(device.memory_GB for device, _ in in_use(self.cluster, max(layout.per_host))) * 1e9
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
            bottleneck=self._bottleneck(step, phases, worked_on, copied) if fits else "memory",
            memory_bytes=needed,
            fits=fits,
            known=spread.known,
            copied_seconds=copied,
        )

    def _seconds(self, strategy: Strategy, devices: int, batch: int, layout: Layout) -> float:
        step = strategy, devices, batch, layout
        if step not in self._steps:
            self._steps[step] = self.simulate(strategy, devices, batch, layout).step_seconds
        return self._steps[step]

    def _of_workers(self, step: Simulated, strategy: Strategy, devices: int) -> Timeline:
        """Servers take as long as workers, to a rounding error, which is not to decide whose phases are told."""
        if not servers_of(strategy):
            return step.timeline
        workers = step.workers if isinstance(step, Steady) else devices
        return Timeline(tuple(span for span in step.timeline.spans if span.rank < workers))

    def _bottleneck(self, step: Simulated, phases: dict[str, float], samples: int, copied: float) -> Bottleneck:
        """Where most of the step goes. Compute that half the samples would not shorten is launching."""
        waited = sum(seconds for phase, seconds in phases.items() if phase in BETWEEN_DEVICES)
        compute = sum(phases.get(phase, 0.0) for phase in ("forward", "loss", "backward", "update"))
        # Who waits for another to compute what is then sent waits under the name of that sending.
        network = min(waited, step.transfer_seconds) if waited else 0.0
        copied = min(compute, copied)
        shares: dict[Bottleneck, float] = {
            "network": network + copied,
            "compute": compute - copied,
            "input": phases.get("load", 0.0),
            "idle": phases.get("idle", 0.0) + waited - network,
        }
        largest = max(shares, key=lambda name: shares[name])
        many = max(samples, 2)  # one sample has no half
        launching = self.costs.compute_seconds(many // 2) > LAUNCHING * self.costs.compute_seconds(many)
        if largest == "compute" and launching and phases.get("update", 0.0) < compute / 2:
            return "network" if shares["network"] > BESIDE_LAUNCH * shares["compute"] else "launch"
        return largest

    def _copied_seconds(self, step: Simulated, strategy: Strategy, layout: Layout) -> float:
        if layout.workers == 1:
            return 0.0
        simulator = self._simulator(strategy, layout, None)
        rounds = step.rounds if isinstance(step, Steady) else 1
        copied = sum(each.moved_bytes for each in step.operations if each.rank == 0) / rounds
        return copied * simulator.moved_seconds_per_byte * simulator.pace(0, 1)
