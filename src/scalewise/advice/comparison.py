"""Compare clusters for a buyer: time and cost to finish, energy, and which one to choose within budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from scalewise.advice.budget import Budget
from scalewise.advice.comparison_table import comparison_table
from scalewise.advice.explanation import best_row, smaller_batch_that_fits
from scalewise.advice.inputs import HERE
from scalewise.advice.rows import Row, dollars, interval_text, short_seconds
from scalewise.core.errors import UserError
from scalewise.core.units import gigabytes_text
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.cluster import Cluster
from scalewise.hardware.gpu_prices import Price
from scalewise.hardware.gpus import find_gpu
from scalewise.predict.memory import memory_bytes
from scalewise.predict.predictor import Predictor
from scalewise.strategies.registry import STRATEGIES, strategy_text

MOST_TIMES = 64
"""How many times as many devices are tried for a model that does not fit."""


@dataclass(frozen=True)
class Range:
    """Predicted value with its 90 % interval."""

    predicted: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.predicted * factor, self.low * factor, self.high * factor)

    def to_json(self) -> dict[str, float]:
        return {"predicted": self.predicted, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Candidate:
    """One cluster with its best row. A cluster on which nothing fits has neither time nor cost."""

    name: str
    cluster: Cluster
    profile: ProfileDocument
    best: Row
    epochs: float
    price: Price | None
    remedy: str = ""
    """What would make the model fit; empty if it does."""

    @property
    def epoch(self) -> Range | None:
        """Seconds of an epoch; None if nothing fits or its samples are not known."""
        prediction = self.best.prediction
        if not self.best.fits or not self.best.epoch_known:
            return None
        return Range(prediction.epoch_seconds, prediction.epoch_low, prediction.epoch_high)

    @property
    def finish(self) -> Range | None:
        """Seconds of the whole training."""
        return self.epoch.times(self.epochs) if self.epoch else None

    @property
    def million(self) -> Range | None:
        """Seconds per million samples."""
        prediction = self.best.prediction
        if not self.best.fits:
            return None
        return Range(prediction.seconds, prediction.low, prediction.high).times(1e6 / prediction.batch)

    @property
    def time(self) -> Range | None:
        """Seconds of the whole training, or per million samples if the training has no known length."""
        return self.finish if self.best.epoch_known else self.million

    @property
    def cost(self) -> Range | None:
        """US dollars of the whole training, or per million samples; hosts in use are paid for as a whole."""
        if self.price is None or self.time is None:
            return None
        return self.time.times(self.dollars_per_second or 0.0)

    @property
    def dollars_per_second(self) -> float | None:
        """Price of the hosts in use; None if it is not known."""
        if self.price is None:
            return None
        return self.price.USD_per_hour * self.best.prediction.hosts / self.cluster.hosts / 3600

    @property
    def cost_per_epoch(self) -> float | None:
        """US dollars; None if it is not known."""
        return self.cost.predicted / self.epochs if self.cost and self.best.epoch_known else None

    @property
    def energy_kWh(self) -> float | None:
        """Energy of the devices in use at their power limit, without their hosts."""
        gpu = find_gpu(self.cluster.devices[0].name)
        if gpu is None or gpu.tdp_W is None or self.time is None:
            return None
        return gpu.tdp_W * self.best.prediction.devices * self.time.predicted / 3.6e6

    @property
    def utilisation(self) -> float | None:
        return utilisation(self.profile, self.cluster, self.best)

    def within(self, budget: Budget, sure: bool) -> bool:
        """Whether time and cost meet the budget: as predicted, or with their whole intervals (`sure`)."""
        if self.time is None or (budget.max_cost and self.cost is None):
            return False
        time = self.time.high if sure else self.time.predicted
        cost = 0.0 if self.cost is None else self.cost.high if sure else self.cost.predicted
        return time <= budget.deadline_seconds and cost <= budget.max_dollars

    def excess(self, budget: Budget) -> str:
        """Say which limits the prediction exceeds: 'longer than 24h and more than $500'."""
        longer = self.time is not None and self.time.predicted > budget.deadline_seconds
        costlier = self.cost is None or self.cost.predicted > budget.max_dollars
        limits = [f"longer than {budget.deadline}"] if longer else []
        limits += [f"more than ${budget.max_dollars:,.0f}"] if budget.max_cost and costlier else []
        return " and ".join(limits)

    def to_json(self) -> dict[str, Any]:
        time, cost, rate = self.finish, self.cost if self.best.epoch_known else None, self.dollars_per_second
        return {
            "cluster": self.name,
            "best": self.best.to_json(),
            "fits": self.best.fits,
            "would_fit": self.remedy or None,
            "epoch_seconds": self.epoch.predicted if self.epoch else None,
            "seconds_to_finish": time.predicted if time else None,
            "seconds_to_finish_interval": time.to_json() if time else None,
            "cost": cost.predicted if cost else None,
            "cost_interval": cost.to_json() if cost else None,
            "cost_per_epoch": self.cost_per_epoch,
            "seconds_per_million_samples": self.million.predicted if self.million else None,
            "cost_per_million_samples": self.million.predicted * rate if self.million and rate is not None else None,
            "price_per_hour": self.price.USD_per_hour if self.price else None,
            "price_source": self.price.source if self.price else None,
            "energy_kWh": self.energy_kWh if self.best.epoch_known else None,
            "utilisation": self.utilisation,
            "quality": self.profile.quality,
        }


def utilisation(profile: ProfileDocument, cluster: Cluster, row: Row) -> float | None:
    """Flops of the model divided by the peak of all devices in use (MFU); None if either is not known."""
    gpu = find_gpu(cluster.devices[0].name)
    if gpu is None or not profile.training_flops or not row.fits:
        return None
    from scalewise.predict.gpu_model import GpuModel, gpu_constants  # imports numpy

    peak = GpuModel(gpu, gpu_constants()).peak_TFLOPS(profile.precision) * 1e12
    prediction = row.prediction
    return profile.training_flops * prediction.batch / prediction.seconds / (peak * prediction.devices)


def candidate_of(name: str, predictor: Predictor, rows: Sequence[Row], epochs: float, price: Price | None) -> Candidate:
    """Choose the fastest exact row of a cluster. `rows`: one device first, all of one batch."""
    exact = [row for row in rows if row.prediction.strategy.exact]
    fitting = [row for row in exact if row.fits]
    cluster, profile = predictor.cluster, predictor.profile
    if fitting:
        return Candidate(name, cluster, profile, best_row(fitting), epochs, price)
    closest = min(exact, key=lambda row: row.prediction.memory_bytes)
    return Candidate(name, cluster, profile, closest, epochs, price, _what_would_fit(predictor, exact))


def _what_would_fit(predictor: Predictor, rows: Sequence[Row]) -> str:
    """Name a smaller batch that fits, and more devices of the same kind that do."""
    remedies = []
    if smaller := smaller_batch_that_fits(predictor, rows):
        batch, row = smaller
        on = f" on {row.prediction.devices} devices" if row.prediction.devices > 1 else ""
        remedies.append(f"batch {batch:,} ({row.name}{on})")
    if more := _more_devices_that_fit(predictor, rows[0].prediction.batch):
        devices, strategy = more
        remedies.append(f"{devices} devices ({strategy})")
    if not remedies:
        least = min(row.prediction.memory_bytes for row in rows)
        return f"a GPU with more than {gigabytes_text(least)}"
    return " or ".join(remedies)


def _more_devices_that_fit(predictor: Predictor, batch: int) -> tuple[int, str] | None:
    cluster = predictor.cluster
    available = 1e9 * min(device.memory_GB for device in cluster.devices)
    large = [kind() for kind in STRATEGIES.values() if kind.for_large_models and not kind.one_host]
    count = 2 * cluster.size
    while count <= min(MOST_TIMES * cluster.size, batch):
        for strategy in large:
            if strategy.in_stages or strategy.updates_on_host:
                continue
            needed = memory_bytes(predictor.profile, predictor.costs, strategy, -(-batch // count), count, cluster)
            if needed <= available:
                return count, strategy_text(strategy)
        count *= 2
    return None


@dataclass(frozen=True)
class Comparison:
    """Clusters in the order of rank, and which one to choose."""

    candidates: Sequence[Candidate]
    budget: Budget
    note: str = ""
    """Why clusters were chosen that nobody named."""

    @property
    def recommended(self) -> Candidate | None:
        """The first candidate that meets the budget with its whole interval, else the first that is predicted to."""
        for sure in (True, False):
            for candidate in self.candidates:
                if candidate.within(self.budget, sure):
                    return candidate
        return None

    @property
    def by_cost(self) -> bool:
        return _ranked_by_cost(self.candidates, self.budget)

    def to_json(self) -> list[dict[str, Any]]:
        return [candidate.to_json() for candidate in self.candidates]

    def verdict(self) -> str:
        """At most four sentences: what to choose, the alternative, what does not fit, what would make it surer."""
        best = self.recommended
        fitting = [candidate for candidate in self.candidates if candidate.time]
        sentences = []
        if best is not None:
            unsure = "" if best.within(self.budget, sure=True) else ", but its interval exceeds the limit"
            sentences.append(f"{self._superlative()}: {best.name} ({_figures(best, self.budget.amount)}{unsure}).")
            sentences += self._alternative(best)
        elif fitting:
            nearest = min(fitting, key=self._excess)
            sentences.append(f"Nothing is predicted to finish {self.budget.text}.")
            sentences.append(f"Closest: {nearest.name} ({_figures(nearest, self.budget.amount)}).")
        not_fitting = [candidate for candidate in self.candidates if not candidate.time]
        if not fitting:
            sentences.append("Nothing fits in memory.")
        if not_fitting:
            first = not_fitting[0]
            others = f", nor on {len(not_fitting) - 1} other" if len(not_fitting) > 1 else ""
            subject = f"{first.profile.workload} at batch {first.best.prediction.batch:,}"
            sentences.append(f"{subject} does not fit in the memory of {first.name}{others}; {first.remedy} would.")
        if fitting and all(candidate.profile.quality == "specification" for candidate in fitting):
            sentences.append(
                "No step was measured: pass one measured step of one GPU (--step-time) for narrower intervals."
            )
        return " ".join(sentences[:4])

    def _excess(self, candidate: Candidate) -> float:
        assert candidate.time is not None
        cost = candidate.cost.predicted / self.budget.max_dollars if candidate.cost else 0.0
        return max(candidate.time.predicted / self.budget.deadline_seconds, cost)

    def _superlative(self) -> str:
        return " ".join(filter(None, ["Cheapest" if self.by_cost else "Fastest", self.budget.text]))

    def _alternative(self, best: Candidate) -> list[str]:
        """The fastest candidate beside the cheapest, or the cheapest beside the fastest."""
        others = [candidate for candidate in self.candidates if candidate.time and candidate is not best]
        if not others:
            return []
        measure = _time_of if self.by_cost else _cost_of
        other = min(others, key=measure)
        if not self.by_cost and other.cost is None:
            other = min(others, key=_time_of)
        label = "Next"
        if measure(other) < measure(best):
            label = "Faster" if self.by_cost else "Cheaper"
        if not other.within(self.budget, sure=False):
            label += f", but {other.excess(self.budget)}"
        return [f"{label}: {other.name} ({_figures(other)})."]

    def table(self) -> Text:
        return comparison_table(self.candidates, self.recommended)

    def notes(self) -> list[str]:
        first = self.candidates[0]
        notes = [self.note] if self.note else []
        if not first.best.epoch_known:
            notes.append("Time, cost and energy are per million samples; --epochs, --samples or --tokens say how many.")
        sources: dict[str, list[str]] = {}
        for candidate in self.candidates:
            if candidate.price:
                text = f"{candidate.name} ${candidate.price.USD_per_hour:,.2f}/h"
                sources.setdefault(candidate.price.source, []).append(text)
        if sources:
            text = "; ".join(f"{', '.join(names)} ({source})" for source, names in sources.items())
            notes.append(f"Prices: {text}. Hosts in use are paid for as a whole; cloud prices change.")
        unpriced = [candidate.name for candidate in self.candidates if candidate.price is None]
        if unpriced:
            notes.append(f"No price is known for {', '.join(unpriced)}; give yours with --price.")
        if any(candidate.energy_kWh is not None for candidate in self.candidates):
            notes.append("Energy: the GPUs at their power limit (TDP), without hosts.")
        if any(candidate.utilisation is not None for candidate in self.candidates):
            notes.append("MFU: the model's flops divided by the peak of the GPUs in use.")
        gpus = [find_gpu(candidate.cluster.devices[0].name) for candidate in self.candidates]
        precision = first.profile.precision
        slow = dict.fromkeys(filter(None, (gpu.lacks_units(precision) for gpu in gpus if gpu)))
        notes += [f"Precision: {'. '.join(slow)}."] if slow else []
        summaries = dict.fromkeys(
            candidate.cluster.summary for candidate in self.candidates if "assumed:" in candidate.cluster.summary
        )
        if summaries:
            notes.append(f"Hosts: {'; '.join(summaries)}.")
        return notes


def compare(candidates: Sequence[Candidate], budget: Budget, note: str = "") -> Comparison:
    """Rank candidates: those that fit, then those within the budget, then by cost or time."""
    if (budget.deadline or budget.max_cost) and not candidates[0].best.epoch_known:
        flag = "--deadline" if budget.deadline else "--max-cost"
        raise UserError(f"{flag} needs the amount of training; add --epochs and --samples, or --tokens")
    if budget.max_cost and all(candidate.price is None for candidate in candidates):
        raise UserError("--max-cost needs a price, and none is known for these clusters; give yours with --price")
    measure = _cost_of if _ranked_by_cost(candidates, budget) else _time_of

    def rank(candidate: Candidate) -> tuple[bool, bool, float]:
        return candidate.time is None, not candidate.within(budget, sure=False), measure(candidate)

    return Comparison(sorted(candidates, key=rank), budget, note)


def _ranked_by_cost(candidates: Sequence[Candidate], budget: Budget) -> bool:
    """Whether the cheapest is sought: unless there is only a limit of cost, and if all prices are known."""
    if budget.max_cost and not budget.deadline:
        return False
    return all(candidate.price is not None for candidate in candidates if candidate.name != HERE)


def _time_of(candidate: Candidate) -> float:
    return candidate.time.predicted if candidate.time else math.inf


def _cost_of(candidate: Candidate) -> float:
    return candidate.cost.predicted if candidate.cost else math.inf


def _figures(candidate: Candidate, amount: str = "") -> str:
    """Return '21 h, $58; 17 to 26 h', or '90 epochs in 21 h for $58; 90% interval 17 to 26 h' with an amount."""
    assert candidate.time is not None
    time, cost = candidate.time, candidate.cost
    interval = interval_text(time.low, time.high).replace("-", " to ")
    seconds, price = short_seconds(time.predicted), f"{dollars(cost.predicted)}" if cost else ""
    if not amount:
        per = "" if candidate.best.epoch_known else " per million samples"
        return f"{seconds}{price and f', {price}'}{per}; {interval}"
    amount = amount if candidate.best.epoch_known else "a million samples"
    return f"{amount} in {seconds}{price and f' for {price}'}; 90% interval {interval}"
