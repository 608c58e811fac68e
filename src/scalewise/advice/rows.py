"""Rows of advice: strategies x devices x batches, each compared with one device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.core.errors import UserError
from scalewise.core.units import seconds_text
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.cluster import Cluster
from scalewise.predict.network import in_use, packed
from scalewise.predict.predictor import Prediction, Predictor
from scalewise.published.tables import OUTLINES
from scalewise.strategies.base import Strategy, batch_shares, options_of
from scalewise.strategies.registry import REFERENCE, strategy_text


@dataclass(frozen=True)
class OmittedStrategy:
    """A strategy that has no row for a number of devices."""

    strategy: str
    devices: int
    problem: str
    """Why there is no row, without a remedy."""


def omitted_text(omitted: Sequence[OmittedStrategy], shown: Collection[str]) -> str:
    """Return 'Omitted: tensor, hybrid (...); layers on 8, 16 devices (...).', or '' if nothing is omitted.

    A strategy's problem is the one on the fewest devices. The numbers of devices are listed for strategies in `shown`,
    which have rows on other numbers of devices.
    """
    counts: dict[str, list[int]] = defaultdict(list)
    problems: dict[str, str] = {}
    for omission in omitted:
        problems.setdefault(omission.strategy, omission.problem)
        if omission.devices not in counts[omission.strategy]:
            counts[omission.strategy].append(omission.devices)
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, problem in problems.items():
        where = f" on {', '.join(map(str, counts[name]))} devices" if name in shown else ""
        groups[where, problem].append(name)
    parts = [f"{', '.join(names)}{where} ({problem})" for (where, problem), names in groups.items()]
    return f"Omitted: {'; '.join(parts)}." if parts else ""


UNITS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (119.5, 1.0, "s"),
    (7200.0, 60.0, "min"),
    (math.inf, 3600.0, "h"),
)
"""Upper limit in seconds, seconds per unit, and name of each unit of time."""


def interval_text(low: float, high: float) -> str:
    """Format an interval of seconds in the unit of its upper bound: '10.2-14.0 ms'."""
    scale, unit = next((scale, unit) for limit, scale, unit in UNITS if high < limit)
    return f"{interval_bounds(low / scale, high / scale)} {unit}"


def interval_bounds(low: float, high: float) -> str:
    """Format an interval with as many decimals as give its upper bound three digits: '10.2-14.0'."""
    decimals = max(0, 2 - math.floor(math.log10(high))) if high > 0 else 0
    return f"{low:,.{decimals}f}-{high:,.{decimals}f}"


def short_seconds(seconds: float) -> str:
    """Format seconds in one unit, with at most 7 characters up to 9,999 hours."""
    if seconds < 119.5:
        return seconds_text(seconds)
    if seconds < 7200:
        return f"{seconds / 60:.1f} min" if seconds < 597 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 35_820 else f"{seconds / 3600:,.0f} h"


def dollars(cost: float | None) -> str:
    """Format a cost in at most seven characters: '<$0.001', '$0.012', '$1.25', '$345', '$12.3k', '$4.5M'."""
    if cost is None:
        return "-"
    if cost < 0.1:
        return f"${cost:.3f}" if cost >= 0.001 else "<$0.001"
    if cost < 99.5:
        return f"${cost:.2f}"
    if cost < 999.5:
        return f"${cost:.0f}"
    return f"${cost / 1e3:.3g}k" if cost < 999.5e3 else f"${cost / 1e6:,.3g}M"


@dataclass(frozen=True)
class Question:
    """Strategies, devices and batches to predict."""

    strategies: Sequence[Strategy]
    devices: Sequence[int]
    batches: Sequence[int]
    """Global batches."""
    batch_per_device: int | None = None
    """Fixed batch per device (weak scaling), in place of the global batches."""
    epoch_known: bool = True
    """Whether the number of samples per epoch is known."""
    strategies_given: bool = True
    """Whether the user named the strategies: an impossible strategy is then an error, otherwise it is omitted."""
    devices_given: bool = True
    """Whether the user gave the numbers of devices: any impossible number is then an error. Otherwise a strategy that
    was named is an error only if it is impossible on all of them."""


@dataclass(frozen=True)
class Row:
    """One prediction, compared with one device.

    A row that does not fit in memory has no time, cost or speedup, and no other row is compared with it.
    """

    prediction: Prediction
    speedup: float | None
    """Epoch time of one device at the same global batch divided by the row's (strong scaling)."""
    speedup_per_device_batch: float | None
    """Throughput divided by that of one device at the same batch per device (weak scaling)."""
    dollars_per_second: float | None
    """Price of the hosts in use; a host in use is paid for as a whole."""
    device_memory_bytes: float
    """Memory of the smallest device in use."""
    weak_scaling: bool = False
    """Whether the batch per device is fixed, so that the global batch grows with the devices."""
    epoch_known: bool = True
    """Whether the number of samples per epoch is known."""

    @property
    def shares(self) -> int:
        """Number of parts in which one device processes the row's batch when it is compared with the row."""
        prediction = self.prediction
        return batch_shares(prediction.strategy, prediction.devices) if self.weak_scaling else 1

    @property
    def gain(self) -> float | None:
        """Speedup on which the verdict is based: weak or strong scaling, depending on the question."""
        return self.speedup_per_device_batch if self.weak_scaling else self.speedup

    @property
    def efficiency(self) -> float | None:
        return None if self.speedup is None else self.speedup / self.prediction.devices

    @property
    def name(self) -> str:
        """Strategy with the options that differ from its defaults: 'data-parallel:engine=threads'."""
        return strategy_text(self.prediction.strategy)

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def step_seconds(self) -> float | None:
        return self.prediction.seconds if self.fits else None

    @property
    def epoch_seconds(self) -> float | None:
        return self.prediction.epoch_seconds if self.fits and self.epoch_known else None

    @property
    def cost_per_epoch(self) -> float | None:
        """US dollars per epoch."""
        if self.dollars_per_second is None or self.epoch_seconds is None:
            return None
        return self.dollars_per_second * self.epoch_seconds

    @property
    def cost_per_1000_steps(self) -> float | None:
        """US dollars per 1,000 steps."""
        if self.dollars_per_second is None or self.step_seconds is None:
            return None
        return 1000 * self.dollars_per_second * self.step_seconds

    def to_json(self) -> dict[str, Any]:
        prediction = self.prediction
        return {
            "strategy": prediction.strategy.name,
            "options": options_of(prediction.strategy),
            "exact": prediction.strategy.exact,
            "devices": prediction.devices,
            "hosts": prediction.hosts,
            "batch": prediction.batch,
            "batch_per_device": prediction.batch_per_device,
            "step_seconds": (
                {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high} if self.fits else None
            ),
            "epoch_seconds": self.epoch_seconds,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "speedup_per_device_batch": self.speedup_per_device_batch,
            "bottleneck": prediction.bottleneck,
            "phases": prediction.phases if self.fits else None,
            "memory_bytes": prediction.memory_bytes,
            "device_memory_bytes": round(self.device_memory_bytes),
            "fits": prediction.fits,
            "extrapolated": prediction.known == "extrapolated",
            "known": prediction.known,
            "cost_per_epoch": self.cost_per_epoch,
            "cost_per_1000_steps": self.cost_per_1000_steps,
        }


def rows_of(predictor: Predictor, question: Question) -> tuple[list[Row], list[OmittedStrategy]]:
    """Predict the rows of every batch, one device first, and list the strategies without a row."""
    rows: list[Row] = []
    omitted: list[OmittedStrategy] = []
    for batch in question.batches if question.batch_per_device is None else [question.batch_per_device]:
        alone = _predict(predictor, question, REFERENCE, 1, batch)
        rows.append(_row(predictor, question, alone, 1.0 if alone.fits else None, 1.0 if alone.fits else None))
        for strategy in question.strategies:
            refusals: list[UserError] = []
            before = len(rows)
            for count in question.devices:
                if count == 1:
                    continue
                twin = strategy.twin(count)
                if any((row.name, row.prediction.devices) == (twin, count) for row in rows):
                    problem = f"with one group it equals {twin}"
                    omitted.append(OmittedStrategy(strategy_text(strategy), count, problem))
                    continue
                if not is_placeable(strategy, predictor.cluster, count):
                    problem = "its weights are in the memory of one host"
                    omitted.append(OmittedStrategy(strategy_text(strategy), count, problem))
                    continue
                try:
                    _check_profile(predictor, strategy)
                    rows.append(_row_of_several(predictor, question, strategy, count, alone))
                except UserError as error:
                    refusals.append(error)
                    omitted.append(OmittedStrategy(strategy_text(strategy), count, error.problem))
            if refusals and question.strategies_given and (question.devices_given or len(rows) == before):
                raise refusals[0]
    return rows, omitted


def _check_profile(predictor: Predictor, strategy: Strategy) -> None:
    """Raise UserError if the profile lacks what the strategy needs to know about the model."""
    profile, footprint = predictor.profile, predictor.footprint
    if strategy.in_stages and not footprint.sections:
        if footprint.not_in_stages:
            raise UserError(footprint.not_in_stages)
        raise _missing(profile, "where the model can be split into stages")
    outlined = profile.workload in OUTLINES and not footprint.matrices
    if strategy.cuts_layers and (outlined or not profile.footprint):
        raise _missing(profile, "which layers can be split between devices")


def _missing(profile: ProfileDocument, fact: str) -> UserError:
    if profile.workload in OUTLINES:
        return UserError(f"the published outline of {profile.workload} does not say {fact}")
    return UserError(
        f"the profile does not say {fact}", f"create one from the model: scalewise profile {profile.workload}"
    )


def is_placeable(strategy: Strategy, cluster: Cluster, devices: int) -> bool:
    """Return False if the strategy needs all devices on one host and they are on several."""
    return not strategy.one_host or packed(cluster, devices).hosts == 1


def one_device_seconds(predictor: Predictor, batch: int, shares: int) -> float:
    """Return the seconds in which one device processes a batch in `shares` parts."""
    share = -(-batch // shares)
    return predictor.simulate(REFERENCE, 1, share).step_seconds * batch / share


def seconds_if_it_fits(predictor: Predictor, strategy: Strategy, devices: int, batch: int) -> float | None:
    """Return the seconds of a step; None if it does not fit in memory, which is checked first because it is fast."""
    if not predictor.fits(strategy, devices, batch):
        return None
    return predictor.simulate(strategy, devices, batch).step_seconds


def _row_of_several(
    predictor: Predictor, question: Question, strategy: Strategy, devices: int, alone: Prediction
) -> Row:
    shares = batch_shares(strategy, devices)
    small, large = alone.batch, alone.batch * shares
    if question.batch_per_device is None:
        prediction = _predict(predictor, question, strategy, devices, small)
        weak_seconds = seconds_if_it_fits(predictor, strategy, devices, large) if alone.fits else None
        one = alone
    else:
        prediction = _predict(predictor, question, strategy, devices, large)
        weak_seconds = prediction.seconds if prediction.fits else None
        one = _predict(predictor, question, REFERENCE, 1, large)
    return _row(
        predictor,
        question,
        prediction,
        one.epoch_seconds / prediction.epoch_seconds if one.fits and prediction.fits else None,
        shares * alone.seconds / weak_seconds if alone.fits and weak_seconds else None,
    )


def _predict(predictor: Predictor, question: Question, strategy: Strategy, devices: int, batch: int) -> Prediction:
    return predictor.predict(strategy, devices, batch, samples=None if question.epoch_known else batch)


def _row(
    predictor: Predictor, question: Question, prediction: Prediction, speedup: float | None, per_device: float | None
) -> Row:
    cluster = predictor.cluster
    price = None if cluster.price_per_hour is None else cluster.price_per_hour * prediction.hosts / cluster.hosts / 3600
    devices_per_host = max(packed(cluster, prediction.devices).per_host)
    memory_bytes = 1e9 * min(device.memory_GB for device, _ in in_use(cluster, devices_per_host))
    weak_scaling = question.batch_per_device is not None
    return Row(prediction, speedup, per_device, price, memory_bytes, weak_scaling, question.epoch_known)
