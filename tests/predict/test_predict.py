"""Predictions for the study's machine from its one-GPU measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.calibration import fit_link, scaled
from scalewise.predict.memory import profile_footprint
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import STUDY_MODELS, load_seconds_per_clip, stevens_profile
from scalewise.strategies.data_parallel import REPLICATION
from scalewise.strategies.registry import STRATEGIES, strategy_of

BOX = cluster_of("4x-gtx-1080-ti")
THREADS = strategy_of("data-parallel:engine=threads")


def test_the_studys_models_have_its_numbers_of_parameters() -> None:
    assert stevens_profile("linear").parameter_bytes == 4 * 12_102_220
    assert stevens_profile("conv").parameter_bytes == 4 * 376_200


def test_load_time_per_clip_follows_from_the_shortest_epochs() -> None:
    assert load_seconds_per_clip() == pytest.approx(92.9e-6, rel=0.02)


@pytest.mark.parametrize("workload", STUDY_MODELS)
def test_one_device_is_predicted_as_measured(workload: str) -> None:
    predictor = Predictor(stevens_profile(workload), BOX)
    alone = {"linear": 0.3486, "conv": 3.2132}[workload]
    assert predictor.predict(strategy_of("single"), 1, 50).epoch_seconds == pytest.approx(alone, rel=1e-3)


def test_the_linear_model_is_network_bound_and_the_convolutional_one_is_not() -> None:
    linear = Predictor(stevens_profile("linear"), BOX).predict(THREADS, 4, 100)
    conv = Predictor(stevens_profile("conv"), BOX).predict(THREADS, 4, 100)
    assert (linear.bottleneck, conv.bottleneck) == ("network", "compute")
    copying_modules = 4 * REPLICATION.copy_us * 2**REPLICATION.exponent * BOX.host_factor * 1e-6
    assert linear.network_seconds == pytest.approx(2 * 48_408_880 / 2.4e9 + copying_modules, rel=0.05)
    assert sum(linear.phases.values()) == pytest.approx(linear.seconds)
    assert linear.low < linear.seconds < linear.high


def test_a_step_that_half_the_samples_do_not_shorten_is_launch_bound() -> None:
    assert Predictor(stevens_profile("linear"), BOX).predict(strategy_of("single"), 1, 20).bottleneck == "launch"


def test_a_prediction_that_does_not_fit_is_memory_bound() -> None:
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=0.1),))
    prediction = Predictor(stevens_profile("linear"), small).predict(THREADS, 2, 20)
    assert (prediction.fits, prediction.bottleneck) == (False, "memory")
    assert prediction.memory_bytes > 4 * 48_408_880


def test_more_devices_than_the_cluster_has_are_refused() -> None:
    with pytest.raises(UserError, match="4x-gtx-1080-ti has 4 devices, not 8"):
        Predictor(stevens_profile("linear"), BOX).predict(THREADS, 8, 80)


def test_gradients_become_ready_from_the_last_layer_in_proportion_to_flops() -> None:
    footprint = profile_footprint(stevens_profile("linear"))
    assert footprint.parameter_bytes == (440, 4040, 400_400, 48_004_000)
    assert footprint.ready[-1] == 1.0
    assert footprint.ready[2] < 0.01
    assert (footprint.input_bytes, footprint.output_bytes) == (48_000, 40)


def test_one_cell_is_enough_to_fit_a_link() -> None:
    truth = scaled(BOX, "devices", 5.0 / BOX.links[0].GBps)
    profile = stevens_profile("linear")
    measured = Predictor(profile, truth).predict(THREADS, 2, 50).seconds
    fit = fit_link(
        BOX, "devices", [lambda cluster: Predictor(profile, cluster).predict(THREADS, 2, 50).seconds], [measured]
    )
    assert fit.GBps == pytest.approx(5.0, rel=0.01)
    assert fit.cluster.knowledge == "fitted"
    assert fit.error_percent < 1


def test_fitting_without_measured_cells_is_refused() -> None:
    with pytest.raises(UserError, match="no measured cell"):
        fit_link(BOX, "devices", [], [])


def test_thousands_of_devices_are_simulated_as_one() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 512 hosts, infiniband-200"))
    prediction = predictor.predict(strategy_of("mirrored"), 4096, 40960)
    assert (prediction.hosts, prediction.batch_per_device) == (512, 10)
    few, many = (predictor.simulate(strategy_of("mirrored"), count, 10 * count) for count in (16, 4096))
    assert len(many.timeline.spans) == len(few.timeline.spans)


@pytest.mark.parametrize("strategy", sorted({*STRATEGIES} - {"single", "central-storage"}))
def test_simulation_of_a_strategy_does_not_grow_with_the_devices(strategy: str) -> None:
    """Strategies that cannot use 4096 devices are refused. Central storage is limited to one host."""
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 512 hosts, infiniband-200"))
    parsed = strategy_of("hybrid:stages=2" if strategy == "hybrid" else strategy)
    if strategy in ("layers", "pipeline", "tensor"):
        with pytest.raises(UserError):
            predictor.predict(parsed, 4096, 40960)
        return
    few, many = (predictor.simulate(parsed, count, 10 * count) for count in (64, 4096))
    assert len(many.operations) == len(few.operations)
    assert predictor.predict(parsed, 4096, 40960).seconds > 0


def test_gpu_slices_update_in_host_memory_at_its_measured_bandwidth() -> None:
    """Slices and CPU cores both use gloo, but cores update in the memory in which they compute."""
    core = replace(BOX.devices[0], name="a core")
    cores = replace(BOX, backend="gloo", devices=(core,))
    slices = replace(cores, devices=(replace(core, host_memory_GBps=20.0),))
    profile, central = stevens_profile("linear"), strategy_of("central-storage")
    on_cores, on_slices = (Predictor(profile, cluster).predict(central, 2, 20) for cluster in (cores, slices))
    # Each of two ranks sums half of the gradients (reads two numbers, writes one) and updates that half with Adam.
    assert on_slices.phases["update"] == pytest.approx((7 + 3) * profile.parameter_bytes / 20e9 / 2, rel=1e-3)
    assert on_cores.phases["update"] < on_slices.phases["update"]


def test_a_short_last_batch_of_a_pipeline_takes_as_long_as_the_others() -> None:
    """The last batch of four samples is padded to sixteen micro-batches."""
    predictor = Predictor(stevens_profile("conv"), BOX)
    predicted = predictor.predict(strategy_of("pipeline:microbatches=16"), 2, 32, samples=100)
    assert predicted.epoch_seconds == pytest.approx(4 * predicted.seconds)
