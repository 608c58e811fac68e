"""The table of `scalewise advise`: strategies x devices x batches, each beside one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.advice.left_out import LeftOut
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.predict import Prediction, Predictor
from scalewise.simulation.layout import packed
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy, batch_shares, options_of
from scalewise.strategies.written import written


@dataclass(frozen=True)
class Question:
    """What the table is about."""

    strategies: Sequence[Strategy]
    devices: Sequence[int]
    batches: Sequence[int]
    """Global ones."""
    batch_per_device: int | None = None
    """Instead of those: every device brings as many samples, and they are compared with one that has as many."""
    epoch_known: bool = True
    """Whether anybody said how many samples make an epoch."""
    named: bool = True
    """Whether the strategies were asked for by name: what one refuses is then an error, else it is left out."""
    counted: bool = True
    """Whether the numbers of devices were: else one that refuses some of them, and not all, leaves those out."""


@dataclass(frozen=True)
class Row:
    """One prediction; `speedup` is over one device at the same global batch, None where that does not fit it."""

    prediction: Prediction
    speedup: float | None
    speedup_per_device_batch: float | None
    """With as many samples on every device as the one device had: the batch grows with those that share it out."""
    dollars_per_second: float | None
    """For the hosts in use, each of them whole."""
    grown: bool = False
    """Whether the batch of each device was asked about."""
    epoch_known: bool = True

    @property
    def shares(self) -> int:
        """Into which one device that it is compared with takes the batch."""
        made = self.prediction
        return batch_shares(made.strategy, made.devices) if self.grown else 1

    @property
    def gain(self) -> float | None:
        """What devices are added for: the speed-up that was asked about."""
        return self.speedup_per_device_batch if self.grown else self.speedup

    @property
    def efficiency(self) -> float | None:
        return None if self.speedup is None else self.speedup / self.prediction.devices

    @property
    def name(self) -> str:
        """'mirrored' or 'data-parallel:engine=threads': what differs from the strategy's own choice."""
        return strategy_text(self.prediction.strategy)

    @property
    def epoch_seconds(self) -> float | None:
        return self.prediction.epoch_seconds if self.epoch_known else None

    @property
    def cost_per_epoch(self) -> float | None:
        """In US dollars, as is the next."""
        if self.dollars_per_second is None or self.epoch_seconds is None:
            return None
        return self.dollars_per_second * self.epoch_seconds

    @property
    def cost_per_1000_steps(self) -> float | None:
        return None if self.dollars_per_second is None else 1000 * self.dollars_per_second * self.prediction.seconds

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
            "epoch_seconds": self.epoch_seconds,
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
            "cost_per_1000_steps": self.cost_per_1000_steps,
        }


def strategy_text(strategy: Strategy) -> str:
    """As it is written on the command line."""
    return written(strategy.name, options_of(strategy))


def rows_of(predictor: Predictor, asked: Question) -> tuple[list[Row], list[LeftOut]]:
    """One device first, at each batch; and what has no row."""
    rows: list[Row] = []
    left_out: list[LeftOut] = []
    for batch in asked.batches if asked.batch_per_device is None else [asked.batch_per_device]:
        alone = _predict(predictor, asked, Single(), 1, batch)
        rows.append(_row(predictor, asked, alone, 1.0 if alone.fits else None, 1.0 if alone.fits else None))
        for strategy in asked.strategies:
            refusals: list[UserError] = []
            before = len(rows)
            for count in asked.devices:
                if count == 1:
                    continue
                twin = twin_of(strategy, count)
                if any((row.name, row.prediction.devices) == (twin, count) for row in rows):
                    left_out.append(LeftOut(strategy_text(strategy), count, f"one group is {twin}"))
                    continue
                if not reaches(strategy, predictor.cluster, count):
                    left_out.append(LeftOut(strategy_text(strategy), count, "its weights are in one host's memory"))
                    continue
                try:
                    _check_told(predictor, strategy)
                    rows.append(_several(predictor, asked, strategy, count, alone))
                except UserError as refused:
                    refusals.append(refused)
                    left_out.append(LeftOut(strategy_text(strategy), count, str(refused)))
            if refusals and asked.named and (asked.counted or len(rows) == before):
                raise refusals[0]
    return rows, left_out


def _check_told(predictor: Predictor, strategy: Strategy) -> None:
    """Layers by their sizes alone do not say which follows which."""
    cuts_layers = strategy.name == "tensor" or (isinstance(strategy, Hybrid) and not strategy.stages)
    if cuts_layers and not predictor.profile.footprint:
        raise UserError(
            "which layers can be cut is not known here; a profile of the model itself tells: scalewise profile "
            f"{predictor.profile.workload}"
        )


def twin_of(strategy: Strategy, devices: int) -> str | None:
    """A hybrid of one group is what it has inside, under another name."""
    if not isinstance(strategy, Hybrid) or devices != strategy.inside:
        return None
    return "pipeline" if strategy.stages else "tensor"


def reaches(strategy: Strategy, cluster: Cluster, devices: int) -> bool:
    """Central storage is the memory of one host."""
    return strategy.name != "central-storage" or packed(cluster, devices).hosts == 1


def one_device_seconds(predictor: Predictor, batch: int, shares: int) -> float:
    """Of one device for as many samples, a share at a time."""
    at_once = -(-batch // shares)
    return predictor.simulate(Single(), 1, at_once).step_seconds * batch / at_once


def _several(predictor: Predictor, asked: Question, strategy: Strategy, devices: int, alone: Prediction) -> Row:
    shares = batch_shares(strategy, devices)
    small, large = alone.batch, alone.batch * shares
    if asked.batch_per_device is None:
        made = _predict(predictor, asked, strategy, devices, small)
        grown = predictor.predict(strategy, devices, large, samples=large)
        same = alone
    else:
        made = grown = _predict(predictor, asked, strategy, devices, large)
        same = _predict(predictor, asked, Single(), 1, large)
    return _row(
        predictor,
        asked,
        made,
        same.epoch_seconds / made.epoch_seconds if same.fits else None,
        shares * alone.seconds / grown.seconds if alone.fits else None,
    )


def _predict(predictor: Predictor, asked: Question, strategy: Strategy, devices: int, batch: int) -> Prediction:
    return predictor.predict(strategy, devices, batch, samples=None if asked.epoch_known else batch)


def _row(
    predictor: Predictor, asked: Question, made: Prediction, speedup: float | None, per_device: float | None
) -> Row:
    cluster = predictor.cluster
    price = None if cluster.price_per_hour is None else cluster.price_per_hour * made.hosts / cluster.hosts / 3600
    return Row(made, speedup, per_device, price, asked.batch_per_device is not None, asked.epoch_known)
