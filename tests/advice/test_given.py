"""One published step as a profile: what it says of other batches, and of memory."""

from __future__ import annotations

import pytest

from scalewise.advice.given import given_profile, least_seconds, published_profile, ready_by_flops
from scalewise.clusters.catalogue import cluster_of
from scalewise.prediction.costs import Costs
from scalewise.prediction.predict import Predictor
from scalewise.published.models import LAYERS, OUTLINES, SAMPLES, outlined_profile
from scalewise.published.stevens import stevens_profile
from scalewise.results.profile import LayerCost
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.single import Single

FLOPS = {"first": 60, "between": 15, "last": 25}
V100 = cluster_of("8x-v100-nvlink").devices[0]
GTX = cluster_of("4x-gtx-1080-ti").devices[0]


def test_the_least_of_a_step_is_launching_and_going_through_the_weights() -> None:
    assert least_seconds(V100, 10, 0) == pytest.approx(450 * V100.launch_us * 1e-6)
    assert least_seconds(V100, 10, 10**9) - least_seconds(V100, 10, 0) == pytest.approx(10 / V100.memory_GBps)


def test_small_batches_do_not_come_down_to_nothing() -> None:
    """Whatever its batch, the linear model takes 4 ms on the study's GPU."""
    seconds = {step.batch: step.forward + step.backward + step.update for step in stevens_profile("linear").steps}
    given = given_profile(stevens_profile("linear"), GTX, (seconds[600], 600))
    costs = Costs(given)
    assert costs.compute_seconds(600) == pytest.approx(seconds[600])
    for batch in (10, 50, 200):
        expected, spread = costs.compute_seconds(batch), costs.spread(batch)
        assert expected == pytest.approx(seconds[batch], rel=0.25)
        assert spread.low * expected < seconds[batch] < spread.high * expected
        assert spread.known == "extrapolated"
    assert Predictor(given, cluster_of("4x-gtx-1080-ti")).predict(Single(), 1, 10).bottleneck == "launch"


def test_steps_far_above_the_least_go_by_the_sample_with_a_wide_interval() -> None:
    given = given_profile(stevens_profile("conv"), GTX, (0.838, 600))
    costs = Costs(given)
    assert costs.compute_seconds(300) == pytest.approx(0.419)
    assert (costs.spread(300).low, costs.spread(300).high) == pytest.approx((0.6, 2.0))
    assert costs.compute_seconds(1) == pytest.approx(given.least_seconds)
    assert costs.spread(1).high == pytest.approx(3.0)


def test_a_step_that_may_be_all_launching_says_little_of_larger_ones() -> None:
    given = given_profile(stevens_profile("linear"), GTX, (0.001, 8))
    costs = Costs(given)
    assert given.least_seconds > 0.001
    assert costs.compute_seconds(1) == costs.compute_seconds(8) == pytest.approx(0.001)
    assert costs.spread(80).low == pytest.approx(0.1)
    assert Costs(given_profile(stevens_profile("linear"), GTX, (1.0, 8))).spread(80).low == 0.8


def test_every_outline_has_its_layers() -> None:
    assert set(LAYERS) == set(OUTLINES)
    assert set(SAMPLES) < set(OUTLINES)


def test_what_layers_keep_counts_where_samples_have_a_usual_size() -> None:
    cluster = cluster_of("8x-v100-nvlink")
    document = published_profile("ResNet-50", V100, (0.062, 32))
    memory = [Predictor(document, cluster).predict(Single(), 1, batch).memory_bytes for batch in (32, 64)]
    assert memory[1] - memory[0] == pytest.approx(32 * 83.7e6, rel=0.3)
    assert not Predictor(document, cluster).predict(Single(), 1, 512).fits
    spoken = published_profile("BERT base", V100, (0.062, 32))
    assert spoken.input_bytes == sum(layer.activation_bytes for layer in spoken.layers) == 0


def test_gradients_leave_as_from_the_outline_alone() -> None:
    """Only samples, which mirrored does not send, were added."""
    cluster = cluster_of("8x-v100-nvlink")
    step = [
        Predictor(document, cluster).simulate(Mirrored(), 8, 256).step_seconds
        for document in (
            published_profile("ResNet-50", V100, (0.062, 32)),
            outlined_profile("ResNet-50", V100.name, {32: 0.062}),
        )
    ]
    assert step[0] == pytest.approx(step[1])


def test_gradients_are_there_when_their_layer_is_through() -> None:
    layers = [LayerCost(name=name, parameter_bytes=4, activation_bytes=0, flops=flops) for name, flops in FLOPS.items()]
    assert ready_by_flops(["last.weight", "last.bias", "first.weight"], layers) == pytest.approx((0.25, 0.25, 1.0))
    assert ready_by_flops(["last.weight"], []) == ()
