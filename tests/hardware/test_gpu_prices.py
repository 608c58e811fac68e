"""Cloud prices of clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.gpu_prices import Price, cloud_price, offers, prices_of
from scalewise.hardware.gpus import gpus


def test_every_offer_has_a_known_gpu_and_a_price_per_gpu_of_the_right_size() -> None:
    assert len(offers()) == 361
    for offer in offers():
        assert offer.gpu in gpus()
        assert 1 <= offer.gpus <= 8
        prices = [price for price in (offer.on_demand_USD_per_hour, offer.spot_USD_per_hour) if price is not None]
        assert prices
        assert all(0.01 < price / offer.gpus < 20 for price in prices)
        if len(prices) == 2:
            assert prices[1] < prices[0]


def test_the_cheapest_instance_with_as_many_gpus_is_chosen() -> None:
    assert cloud_price(cluster_of("4 x rtx-4090")) == Price(1.49, "vast, on demand, 2025-10-27")
    assert cloud_price(cluster_of("8x-a100-nvlink")) is not None


def test_hosts_are_paid_for_one_by_one() -> None:
    one, four = cloud_price(cluster_of("8 x h100-nvlink")), cloud_price(cluster_of("8 x h100-nvlink, 4 hosts, 100gbe"))
    assert one is not None
    assert four is not None
    assert four.USD_per_hour == pytest.approx(4 * one.USD_per_hour)
    assert four.source == one.source


def test_without_an_instance_of_that_size_the_next_larger_one_is_paid_for() -> None:
    three = cloud_price(cluster_of("3 x t4"))
    assert three == Price(3.912, "aws, on demand for 4 GPUs, 2026-08-22")


def test_spot_prices_are_lower_and_may_be_unknown() -> None:
    cluster = cluster_of("1 x t4")
    assert cloud_price(cluster, spot=True) == Price(0.062147, "azure, spot, 2025-09-11")
    assert prices_of([cluster_of("1 x rtx-4090")], (), spot=True) == [None]


def test_a_gpu_without_offers_costs_what_the_cluster_says() -> None:
    box = replace(cluster_of("4x-gtx-1080-ti"), price_per_hour=2.5)
    assert prices_of([box], ()) == [Price(2.5, "price_per_hour of 4x-gtx-1080-ti")]
    assert prices_of([box], (), spot=True) == [None]


def test_own_prices_are_given_for_every_cluster() -> None:
    clusters = [cluster_of("1 x t4"), cluster_of("1 x l4")]
    assert prices_of(clusters, [1.0, 2.0]) == [Price(1.0, "your price"), Price(2.0, "your price")]
    with pytest.raises(UserError, match="--price is given 1 times for 2 clusters"):
        prices_of(clusters, [1.0])
