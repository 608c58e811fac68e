"""Width of prediction intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.predict.predictor import ALONE, Prediction, Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.registry import strategy_of

BOX = cluster_of("4x-gtx-1080-ti")


def predicted(cluster: Cluster, devices: int, batch: int = 100, strategy: str = "mirrored") -> Prediction:
    return Predictor(stevens_profile("linear"), cluster).predict(strategy_of(strategy), devices, batch)


def width(prediction: Prediction) -> float:
    return (prediction.high - prediction.low) / prediction.seconds


def test_one_device_at_a_profiled_batch_has_the_narrowest_interval() -> None:
    alone = predicted(BOX, 1, strategy="single")
    assert (alone.high / alone.seconds, alone.low / alone.seconds) == pytest.approx((1.025, 0.975))
    assert width(predicted(BOX, 4)) > width(alone)


def test_catalogue_links_have_wider_intervals_than_fitted_ones() -> None:
    assert width(predicted(BOX, 4)) > 2 * width(predicted(replace(BOX, knowledge="fitted"), 4))


def test_cpu_cores_have_wider_intervals_than_gpus() -> None:
    cores = replace(BOX, backend="gloo", knowledge="measured")
    gpus = replace(BOX, knowledge="measured")
    assert width(predicted(cores, 2)) > width(predicted(gpus, 2))
    assert width(predicted(cores, 1, strategy="single")) == pytest.approx(2 * ALONE["gloo"])
    assert ALONE["gloo"] > 2 * ALONE["nccl"]


def test_intervals_outside_of_the_profiled_batches_are_wide() -> None:
    conv = Predictor(stevens_profile("conv"), BOX)
    below, within = (conv.predict(strategy_of("mirrored"), 4, batch) for batch in (8, 80))
    assert (below.known, within.known) == ("extrapolated", "measured")
    assert width(below) > 1.5 * width(within)
