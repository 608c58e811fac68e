"""Predictions on the study's machine, from its one-GPU columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.errors import UserError
from scalewise.prediction.calibrate import fit_link
from scalewise.prediction.footprint import footprint_of
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import MODELS, load_seconds_per_clip, stevens_profile
from scalewise.strategies.registry import STRATEGIES, strategy_of

BOX = cluster_of("4x-gtx-1080-ti")
THREADS = strategy_of("data-parallel:engine=threads")


def test_the_studys_models_have_the_parameters_it_counts() -> None:
    assert stevens_profile("linear").parameter_bytes == 4 * 12_102_220
    assert stevens_profile("conv").parameter_bytes == 4 * 376_200


def test_reading_a_clip_takes_what_the_floor_of_its_epochs_says() -> None:
    assert load_seconds_per_clip() == pytest.approx(92.9e-6, rel=0.02)


@pytest.mark.parametrize("workload", MODELS)
def test_one_device_comes_out_as_measured(workload: str) -> None:
    predictor = Predictor(stevens_profile(workload), BOX)
    alone = {"linear": 0.3486, "conv": 3.2132}[workload]
    assert predictor.predict(strategy_of("single"), 1, 50).epoch_seconds == pytest.approx(alone, rel=1e-3)


def test_the_linear_model_is_choked_by_the_network_and_the_convolutional_one_is_not() -> None:
    linear = Predictor(stevens_profile("linear"), BOX).predict(THREADS, 4, 100)
    conv = Predictor(stevens_profile("conv"), BOX).predict(THREADS, 4, 100)
    assert (linear.bottleneck, conv.bottleneck) == ("network", "compute")
    assert linear.network_seconds == pytest.approx(2 * 48_408_880 / 2.4e9, rel=0.05)
    assert sum(linear.phases.values()) == pytest.approx(linear.seconds)
    assert linear.low < linear.seconds < linear.high


def test_what_takes_as_long_for_half_the_samples_is_launching() -> None:
    assert Predictor(stevens_profile("linear"), BOX).predict(strategy_of("single"), 1, 20).bottleneck == "launch"


def test_more_than_the_memory_holds_is_said() -> None:
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=0.1),))
    prediction = Predictor(stevens_profile("linear"), small).predict(THREADS, 2, 20)
    assert (prediction.fits, prediction.bottleneck) == (False, "memory")
    assert prediction.memory_bytes > 4 * 48_408_880


def test_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="4x-gtx-1080-ti has 4 devices, not 8"):
        Predictor(stevens_profile("linear"), BOX).predict(THREADS, 8, 80)


def test_gradients_become_ready_from_the_last_layer_in_step_with_the_flops() -> None:
    footprint = footprint_of(stevens_profile("linear"))
    assert footprint.parameter_bytes == (440, 4040, 400_400, 48_004_000)
    assert footprint.ready[-1] == 1.0
    assert footprint.ready[2] < 0.01
    assert (footprint.input_bytes, footprint.output_bytes) == (48_000, 40)


def test_one_cell_is_enough_to_find_a_link_again() -> None:
    truth = BOX.with_link("devices", 5.0)
    profile = stevens_profile("linear")
    measured = Predictor(profile, truth).predict(THREADS, 2, 50).seconds
    fit = fit_link(
        BOX, "devices", [lambda tried: Predictor(profile, tried).predict(THREADS, 2, 50).seconds], [measured]
    )
    assert fit.GBps == pytest.approx(5.0, rel=0.01)
    assert fit.cluster.knowledge == "fitted"
    assert fit.error_percent < 1


def test_nothing_measured_fits_nothing() -> None:
    with pytest.raises(UserError, match="no measured cell"):
        fit_link(BOX, "devices", [], [])


def test_thousands_of_devices_are_simulated_as_one() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 512 hosts, infiniband-200"))
    prediction = predictor.predict(strategy_of("mirrored"), 4096, 40960)
    assert (prediction.hosts, prediction.batch_per_device) == (512, 10)
    few, many = (predictor.simulate(strategy_of("mirrored"), count, 10 * count) for count in (16, 4096))
    assert len(many.timeline.spans) == len(few.timeline.spans)


@pytest.mark.parametrize("strategy", sorted({*STRATEGIES} - {"single", "central-storage"}))
def test_no_strategy_grows_with_the_devices(strategy: str) -> None:
    """Those that cannot be there say so; none plans thousands one by one. Central storage stays on one host."""
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 512 hosts, infiniband-200"))
    made = strategy_of("hybrid:stages=2" if strategy == "hybrid" else strategy)
    if strategy in ("layers", "pipeline", "tensor"):
        with pytest.raises(UserError):
            predictor.predict(made, 4096, 40960)
        return
    few, many = (predictor.simulate(made, count, 10 * count) for count in (64, 4096))
    assert len(many.operations) == len(few.operations)
    assert predictor.predict(made, 4096, 40960).seconds > 0


def test_slices_of_a_gpu_update_in_host_memory_at_its_measured_pace() -> None:
    """Their ranks talk over gloo, as cores do, which update where they compute."""
    core = replace(BOX.devices[0], name="a core")
    cores = replace(BOX, backend="gloo", devices=(core,))
    slices = replace(cores, devices=(replace(core, host_memory_GBps=20.0),))
    profile, central = stevens_profile("linear"), strategy_of("central-storage")
    beside, on_host = (Predictor(profile, cluster).predict(central, 2, 20) for cluster in (cores, slices))
    # Each of the two sums its half, reads two numbers and writes one, and updates it with Adam.
    assert on_host.phases["update"] == pytest.approx((7 + 3) * profile.parameter_bytes / 20e9 / 2, rel=1e-3)
    assert beside.phases["update"] < on_host.phases["update"]


def test_a_short_last_batch_of_a_pipeline_takes_as_long_as_the_others() -> None:
    """Its micro-batches are filled up; no batch of four has sixteen."""
    predictor = Predictor(stevens_profile("conv"), BOX)
    asked = strategy_of("pipeline:microbatches=16")
    predicted = predictor.predict(asked, 2, 32, samples=100)
    assert predicted.epoch_seconds == pytest.approx(4 * predicted.seconds)
