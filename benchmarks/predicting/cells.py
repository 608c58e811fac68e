"""Cells: strategies x workloads x batches x links x devices, predicted before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from predicting.machine import LOOPBACK
from predicting.quiet import say
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.predict import Predictor
from scalewise.results.profile import ProfileDocument
from scalewise.strategies.registry import strategy_of

ALONE = "single"
"""Not scored: how far the machine is from what it was when one device was profiled, which no model can foresee."""
ALL = ("mirrored", "ring", "data-parallel", "parameter-server", "central-storage", "layers", "pipeline", "tensor")
ONE_HOST = ("central-storage",)

Key = tuple[str, str, str, int, int]
"""Workload, strategy, link, batch, devices."""


@dataclass(frozen=True)
class Cell:
    """Seconds of a step, predicted and measured."""

    workload: str
    strategy: str
    link: str
    batch: int
    devices: int
    predicted: float
    low: float
    high: float
    alone_predicted: float
    measured: float = float("nan")
    alone_measured: float = float("nan")

    @property
    def key(self) -> Key:
        return self.workload, self.strategy, self.link, self.batch, self.devices

    @property
    def alone(self) -> Key:
        """What it is compared with."""
        return self.workload, ALONE, LOOPBACK, self.batch, 1

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def foreseen_choke(self) -> bool:
        return self.predicted > self.alone_predicted

    @property
    def choked(self) -> bool:
        return self.measured > self.alone_measured


def predicted(
    profiles: Mapping[str, ProfileDocument],
    clusters: Mapping[tuple[str, int], Cluster],
    workloads: Mapping[str, Sequence[int]],
    strategies: Sequence[str],
) -> Iterator[Cell]:
    for name, profile in profiles.items():
        batches = workloads[name]
        alone_told = set()
        for (link, devices), cluster in clusters.items():
            predictor = Predictor(profile, cluster)
            for batch in batches:
                alone = predictor.predict(strategy_of(ALONE), 1, batch)
                if batch not in alone_told:
                    yield Cell(name, ALONE, LOOPBACK, batch, 1, alone.seconds, alone.low, alone.high, alone.seconds)
                    alone_told.add(batch)
                for strategy in strategies_on(link, strategies):
                    try:
                        made = predictor.predict(strategy_of(strategy), devices, batch)
                    except UserError as error:
                        say(f"left out: {name}, {strategy}, {devices} devices: {error}")
                        continue
                    yield Cell(name, strategy, link, batch, devices, made.seconds, made.low, made.high, alone.seconds)


def strategies_on(link: str, chosen: Sequence[str]) -> list[str]:
    return [name for name in chosen if link == LOOPBACK or name not in ONE_HOST]
