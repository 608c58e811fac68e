"""Profiles from one step time: other batches, and memory."""

from __future__ import annotations

import pytest

from scalewise.advice.one_device import given_profile, minimum_step_seconds, published_profile
from scalewise.formats.profile import LayerCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.device_costs import Costs
from scalewise.predict.memory import memory_bytes, ready_by_flops
from scalewise.predict.predictor import Predictor
from scalewise.probe.untimed_profile import outline_of
from scalewise.published.stevens import stevens_profile
from scalewise.published.tables import LAYERS, OUTLINES, SAMPLES, outlined_profile
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.single import Single
from scalewise.strategies.tensor import Tensor

FLOPS = {"first": 60, "between": 15, "last": 25}
V100 = cluster_of("8x-v100-nvlink").devices[0]
GTX = cluster_of("4x-gtx-1080-ti").devices[0]


def test_minimum_step_time_is_kernel_launches_and_passes_over_the_weights() -> None:
    assert minimum_step_seconds(V100, 10, 0) == pytest.approx(450 * V100.launch_us * 1e-6)
    assert minimum_step_seconds(V100, 10, 10**9) - minimum_step_seconds(V100, 10, 0) == pytest.approx(
        10 / V100.memory_GBps
    )


def test_small_batches_take_at_least_the_minimum_step_time() -> None:
    """A step of the linear model takes 4 ms on the study's GPU at every batch."""
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


def test_long_steps_scale_with_the_batch_and_have_a_wide_interval() -> None:
    given = given_profile(stevens_profile("conv"), GTX, (0.838, 600))
    costs = Costs(given)
    assert costs.compute_seconds(300) == pytest.approx(0.419)
    assert (costs.spread(300).low, costs.spread(300).high) == pytest.approx((0.6, 2.0))
    assert costs.compute_seconds(1) == pytest.approx(given.least_seconds)
    assert costs.spread(1).high == pytest.approx(3.0)


def test_a_step_near_the_minimum_gives_wide_intervals_for_larger_batches() -> None:
    given = given_profile(stevens_profile("linear"), GTX, (0.001, 8))
    costs = Costs(given)
    assert given.least_seconds > 0.001
    assert costs.compute_seconds(1) == costs.compute_seconds(8) == pytest.approx(0.001)
    assert costs.spread(80).low == pytest.approx(0.1)
    assert Costs(given_profile(stevens_profile("linear"), GTX, (1.0, 8))).spread(80).low == 0.8


def test_every_outline_has_a_number_of_layers() -> None:
    assert set(LAYERS) == set(OUTLINES)
    assert set(SAMPLES) < set(OUTLINES)


def test_activations_count_if_the_size_of_a_sample_is_known() -> None:
    cluster = cluster_of("8x-v100-nvlink")
    document = published_profile("ResNet-50", V100, (0.062, 32))
    memory = [Predictor(document, cluster).predict(Single(), 1, batch).memory_bytes for batch in (32, 64)]
    assert memory[1] - memory[0] == pytest.approx(32 * 83.7e6, rel=0.3)
    assert not Predictor(document, cluster).predict(Single(), 1, 512).fits
    spoken = published_profile("BERT base", V100, (0.062, 32))
    assert spoken.input_bytes == sum(layer.activation_bytes for layer in spoken.layers) == 0


def test_activations_do_not_change_the_mirrored_step() -> None:
    cluster = cluster_of("8x-v100-nvlink")
    step = [
        Predictor(document, cluster).simulate(Mirrored(), 8, 256).step_seconds
        for document in (
            published_profile("ResNet-50", V100, (0.062, 32)),
            outlined_profile("ResNet-50", V100.name, {32: 0.062}),
        )
    ]
    assert step[0] == pytest.approx(step[1])


def test_gradients_are_ready_at_the_end_of_their_layer() -> None:
    layers = [LayerCost(name=name, parameter_bytes=4, activation_bytes=0, flops=flops) for name, flops in FLOPS.items()]
    assert ready_by_flops(["last.weight", "last.bias", "first.weight"], layers) == pytest.approx((0.25, 0.25, 1.0))
    assert ready_by_flops(["last.weight"], []) == ()


def test_gradients_of_a_described_model_are_ready_layer_by_layer() -> None:
    outline = outline_of("linear")
    document = given_profile(outline, V100, (0.01, 64))
    ready = document.steps[0].ready
    assert len(ready) == len(document.footprint["parameter_names"])
    assert list(ready) == sorted(ready)
    assert ready[0] < 0.5 < ready[-1] == pytest.approx(1.0)


def test_tensor_parallelism_divides_the_memory_of_a_described_model() -> None:
    document = given_profile(outline_of("linear"), V100, (0.01, 64))
    cluster = cluster_of("8x-v100-nvlink")
    one, four = (
        memory_bytes(document, Costs(document), Tensor() if devices > 1 else Single(), 64 // devices, devices, cluster)
        for devices in (1, 4)
    )
    assert four < 0.5 * one
