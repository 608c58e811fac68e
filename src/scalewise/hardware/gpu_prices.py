"""Hourly prices of cloud instances with GPUs, by GPU and number per host. Imports no torch."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from scalewise.core.errors import UserError
from scalewise.hardware.cluster import Cluster
from scalewise.hardware.gpus import Gpu, find_gpu

SNAPSHOT = "2026-08-22"
"""Date of the price list; `Offer.listed` is the date on which a provider's list last changed."""


@dataclass(frozen=True)
class Offer:
    """Price of one instance type."""

    gpu: str
    """Key of the GPU."""
    gpus: int
    """GPUs per instance."""
    provider: str
    instance_type: str
    on_demand_USD_per_hour: float | None
    spot_USD_per_hour: float | None
    listed: str
    """ISO date."""

    def USD_per_hour(self, spot: bool) -> float | None:
        return self.spot_USD_per_hour if spot else self.on_demand_USD_per_hour


@dataclass(frozen=True)
class Price:
    """Price of a whole cluster."""

    USD_per_hour: float
    source: str
    """Provider, kind of price and date, as in 'lambda, on demand, 2026-08-22'."""


@cache
def offers() -> tuple[Offer, ...]:
    """Return the offers of gpu_prices.csv: for every GPU and number of GPUs the three cheapest, and the cheapest on
    spot."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    with (files(__package__) / "gpu_prices.csv").open(encoding="utf-8") as lines:
        return tuple(
            Offer(
                gpu=row["gpu"],
                gpus=int(row["gpus"]),
                provider=row["provider"],
                instance_type=row["instance_type"],
                on_demand_USD_per_hour=number(row["on_demand_USD_per_hour"]),
                spot_USD_per_hour=number(row["spot_USD_per_hour"]),
                listed=row["listed"],
            )
            for row in csv.DictReader(lines)
        )


def cloud_price(cluster: Cluster, spot: bool = False) -> Price | None:
    """Return the cheapest price of a cluster's hosts at a cloud; None if its GPU is not in the list.

    If no instance has as many GPUs as a host of the cluster, the next larger one is paid for; if there is none,
    instances with fewer GPUs in proportion.
    """
    gpu = find_gpu(cluster.devices[0].name)
    if gpu is None or len(cluster.devices) > 1:
        return None
    offer = _cheapest(gpu, cluster.devices_per_host, spot)
    if offer is None:
        return None
    price = offer.USD_per_hour(spot)
    assert price is not None
    share = max(1.0, cluster.devices_per_host / offer.gpus)
    kind = "spot" if spot else "on demand"
    unequal = "" if offer.gpus == cluster.devices_per_host else f" for {offer.gpus} GPUs"
    return Price(price * share * cluster.hosts, f"{offer.provider}, {kind}{unequal}, {offer.listed}")


def _cheapest(gpu: Gpu, count: int, spot: bool) -> Offer | None:
    """Cheapest offer with `count` GPUs, else with the next larger number, else with the next smaller one."""
    priced = [offer for offer in offers() if offer.gpu == gpu.key and offer.USD_per_hour(spot) is not None]
    counts = {offer.gpus for offer in priced}
    enough = min((have for have in counts if have >= count), default=max(counts, default=0))
    return min(
        (offer for offer in priced if offer.gpus == enough),
        key=lambda offer: offer.USD_per_hour(spot) or 0.0,
        default=None,
    )


def prices_of(clusters: Sequence[Cluster], own: Sequence[float], spot: bool = False) -> list[Price | None]:
    """Return the price of every cluster: the user's own, the cloud's, or that of the cluster's file.

    `own`: US dollars per hour of each whole cluster, in the same order; empty for list prices.
    """
    if own:
        if len(own) != len(clusters):
            raise UserError(
                f"--price is given {len(own)} times for {len(clusters)} clusters; give the dollars per hour of each "
                "whole cluster, in the same order"
            )
        return [Price(price, "your price") for price in own]
    return [_listed(cluster, spot) for cluster in clusters]


def _listed(cluster: Cluster, spot: bool) -> Price | None:
    price = cloud_price(cluster, spot)
    if price is None and cluster.price_per_hour is not None and not spot:
        return Price(cluster.price_per_hour, f"price_per_hour of {cluster.name}")
    return price
