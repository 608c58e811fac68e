"""Cells: strategies x workloads x batches x links x devices, predicted before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from predicting.machine import LOOPBACK
from predicting.quiet import say
from scalewise.core.errors import UserError
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.cluster import Cluster
from scalewise.predict.predictor import Predictor
from scalewise.strategies.registry import strategy_of

ALONE = "single"
"""Baseline strategy. Its own error is not scored: it only shows how the machine's speed changed since the profile."""
ALL = ("mirrored", "ring", "data-parallel", "parameter-server", "central-storage", "layers", "pipeline", "tensor")
ONE_HOST = ("central-storage",)

Key = tuple[str, str, str, int, int]
"""Key of a cell: workload, strategy, link, batch, devices."""


@dataclass(frozen=True)
class Cell:
    """Predicted and measured step time (seconds) of one combination."""

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
        """Key of the baseline: one device at the same batch."""
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
        batches_with_baseline = set()
        for (link, devices), cluster in clusters.items():
            predictor = Predictor(profile, cluster)
            for batch in batches:
                alone = predictor.predict(strategy_of(ALONE), 1, batch)
                if batch not in batches_with_baseline:
                    yield Cell(name, ALONE, LOOPBACK, batch, 1, alone.seconds, alone.low, alone.high, alone.seconds)
                    batches_with_baseline.add(batch)
                for strategy in strategies_on(link, strategies):
                    try:
                        step = predictor.predict(strategy_of(strategy), devices, batch)
                    except UserError as error:
                        say(f"left out: {name}, {strategy}, {devices} devices: {error}")
                        continue
                    yield Cell(name, strategy, link, batch, devices, step.seconds, step.low, step.high, alone.seconds)


def strategies_on(link: str, strategies: Sequence[str]) -> list[str]:
    return [name for name in strategies if link == LOOPBACK or name not in ONE_HOST]
