"""What a phase takes on a device: alone, or as one of several that share a host, a GPU or a processor."""

from __future__ import annotations

from functools import cached_property

from scalewise.clusters.cluster import Cluster
from scalewise.prediction.costs import Costs
from scalewise.prediction.siblings import slowdown
from scalewise.results.profile import ProfileDocument
from scalewise.simulation.simulate import Seconds

UPDATED_ON_HOST = {"parameter-server", "parameter-server-async", "central-storage"}
UPDATE_PASSES = 7
"""Adam reads four numbers and writes three for each parameter."""


def updates_on_host(strategy: str, cluster: Cluster) -> bool:
    """Other than where the devices compute, which are cores of it if nothing says that they are GPUs."""
    return strategy in UPDATED_ON_HOST and cluster.has_gpus


class DeviceSeconds:
    """Of one profile on one cluster."""

    def __init__(self, profile: ProfileDocument, costs: Costs, cluster: Cluster) -> None:
        self.profile, self.costs, self.cluster = profile, costs, cluster

    def alone(self, strategy: str) -> Seconds:
        return self._with_host if updates_on_host(strategy, self.cluster) else self.costs.seconds

    def among(self, devices: int, strategy: str, lone: frozenset[str] = frozenset()) -> Seconds:
        """As one of so many on a host; in `lone` phases one works while the others wait."""
        if not {1, devices} <= self._in_step.keys():
            return self._beside_siblings(self.alone(strategy), lone)
        on_host = {"update"} if updates_on_host(strategy, self.cluster) else set[str]()
        meeting, waiting = self._in_step[devices], self._in_step[1]

        def in_step(phase: str, samples: int) -> float:
            if phase in on_host:
                return self._with_host(phase, samples)
            return (waiting if phase in lone else meeting).seconds(phase, samples)

        return in_step

    @cached_property
    def _in_step(self) -> dict[int, Costs]:
        """By numbers of devices, as far as they were timed together."""
        return {
            each.devices: Costs(self.profile.model_copy(update={"steps": each.steps})) for each in self.profile.in_step
        }

    def _beside_siblings(self, seconds: Seconds, lone: frozenset[str]) -> Seconds:
        """As any work slows down there, where this one was timed alone."""
        device, size = self.cluster.devices[0], self.profile.parameter_bytes

        def slowed(phase: str, samples: int) -> float:
            alone = seconds(phase, samples)
            if phase in lone:
                return alone
            beside = alone * slowdown(device, size, phase, alone)
            if not self.cluster.has_gpus or not alone:
                return beside
            # Siblings slow down a device, not the host that tells it what to do.
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
