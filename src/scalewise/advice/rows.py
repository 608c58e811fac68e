"""The table of `scalewise advise`: strategies x devices x batches, each beside one device at the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.predict import Prediction, Predictor
from scalewise.simulation.layout import packed
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy, options_of


@dataclass(frozen=True)
class Row:
    """One prediction; `speedup` is over one device at the same global batch, None where that does not fit it."""

    prediction: Prediction
    speedup: float | None
    speedup_per_device_batch: float | None
    """With as many samples on every device as the one device had: the batch grows with the devices."""
    cost_per_epoch: float | None
    """In US dollars, for the hosts in use."""

    @property
    def efficiency(self) -> float | None:
        return None if self.speedup is None else self.speedup / self.prediction.devices

    @property
    def name(self) -> str:
        """'mirrored' or 'data-parallel:engine=threads': what differs from the strategy's own choice."""
        return strategy_text(self.prediction.strategy)

    def to_json(self) -> dict[str, Any]:
        made = self.prediction
        return {
            "strategy": made.strategy.name,
            "options": options_of(made.strategy),
            "exact": made.strategy.exact,
            "devices": made.devices,
            "hosts": made.hosts,
            "batch": made.batch,
            "batch_per_device": made.batch_per_device,
            "step_seconds": {"predicted": made.seconds, "low": made.low, "high": made.high},
            "epoch_seconds": made.epoch_seconds,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "speedup_per_device_batch": self.speedup_per_device_batch,
            "bottleneck": made.bottleneck,
            "phases": made.phases,
            "memory_bytes": made.memory_bytes,
            "fits": made.fits,
            "extrapolated": made.known == "extrapolated",
            "known": made.known,
            "cost_per_epoch": self.cost_per_epoch,
        }


def strategy_text(strategy: Strategy) -> str:
    """As it is written on the command line."""
    own = asdict(type(strategy)())  # type: ignore[call-overload]
    changed = {key: value for key, value in options_of(strategy).items() if own[key] != value}
    return strategy.name + (":" + ",".join(f"{key}={value}" for key, value in changed.items()) if changed else "")


def rows_of(
    predictor: Predictor,
    strategies: Sequence[Strategy],
    devices: Sequence[int],
    batches: Sequence[int],
    leave_out: bool = False,
) -> list[Row]:
    """One device first, at each batch. `leave_out`: what a strategy refuses has no row."""
    rows: list[Row] = []
    for batch in batches:
        alone = predictor.predict(Single(), 1, batch)
        rows.append(
            Row(alone, 1.0 if alone.fits else None, 1.0 if alone.fits else None, _cost(predictor.cluster, alone))
        )
        for strategy in strategies:
            for count in devices:
                if count == 1 or not reaches(strategy, predictor.cluster, count):
                    continue
                try:
                    rows.append(row_of(predictor, strategy, count, batch, alone))
                except UserError:
                    if not leave_out:
                        raise
    return rows


def reaches(strategy: Strategy, cluster: Cluster, devices: int) -> bool:
    """Central storage is the memory of one host."""
    return strategy.name != "central-storage" or packed(cluster, devices).hosts == 1


def row_of(predictor: Predictor, strategy: Strategy, devices: int, batch: int, alone: Prediction) -> Row:
    made = predictor.predict(strategy, devices, batch)
    grown = predictor.predict(strategy, devices, batch * devices, samples=batch * devices)
    return Row(
        prediction=made,
        speedup=alone.epoch_seconds / made.epoch_seconds if alone.fits else None,
        speedup_per_device_batch=devices * alone.seconds / grown.seconds if alone.fits else None,
        cost_per_epoch=_cost(predictor.cluster, made),
    )


def _cost(cluster: Cluster, made: Prediction) -> float | None:
    if cluster.price_per_hour is None:
        return None
    return cluster.price_per_hour * made.hosts / cluster.hosts * made.epoch_seconds / 3600
