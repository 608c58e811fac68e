"""How wide intervals are, and for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.interval import ALONE
from scalewise.prediction.predict import Prediction, Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.registry import strategy_of

BOX = cluster_of("4x-gtx-1080-ti")


def predicted(cluster: Cluster, devices: int, batch: int = 100, strategy: str = "mirrored") -> Prediction:
    return Predictor(stevens_profile("linear"), cluster).predict(strategy_of(strategy), devices, batch)


def width(made: Prediction) -> float:
    return (made.high - made.low) / made.seconds


def test_a_device_that_was_profiled_at_this_batch_is_surest() -> None:
    alone = predicted(BOX, 1, strategy="single")
    assert (alone.high / alone.seconds, alone.low / alone.seconds) == pytest.approx((1.025, 0.975))
    assert width(predicted(BOX, 4)) > width(alone)


def test_links_of_a_catalogue_are_less_sure_than_fitted_ones() -> None:
    assert width(predicted(BOX, 4)) > 2 * width(predicted(replace(BOX, knowledge="fitted"), 4))


def test_cores_are_less_sure_than_cards_that_nobody_else_uses() -> None:
    cores = replace(BOX, backend="gloo", knowledge="measured")
    cards = replace(BOX, knowledge="measured")
    assert width(predicted(cores, 2)) > width(predicted(cards, 2))
    assert width(predicted(cores, 1, strategy="single")) == pytest.approx(2 * ALONE["gloo"])
    assert ALONE["gloo"] > 2 * ALONE["nccl"]


def test_where_the_profile_ends_it_is_wide() -> None:
    conv = Predictor(stevens_profile("conv"), BOX)
    below, within = (conv.predict(strategy_of("mirrored"), 4, batch) for batch in (8, 80))
    assert (below.known, within.known) == ("extrapolated", "measured")
    assert width(below) > 1.5 * width(within)
