"""Plans of DataParallel that represent equal workers by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.network import Network, packed
from scalewise.predict.predictor import Predictor
from scalewise.predict.simulator import DDP, Simulator
from scalewise.published.gpu_steps import data_parallel_profile, load_data_parallel
from scalewise.strategies.data_parallel import REPLICATION, DataParallel, ReplicationCost, alike_workers_plan
from scalewise.strategies.plan import Footprint, Plan

MODEL = Footprint(parameter_bytes=(10**7, 9 * 10**7), input_bytes=150_000, target_bytes=4, output_bytes=4_000)


def step_seconds(plan: Plan, devices: int) -> float:
    cluster = cluster_of(f"8 x a100-nvlink, {devices // 8} hosts, infiniband-200")
    network = Network(cluster, packed(cluster, devices))
    return Simulator(network, DDP).simulate(plan, lambda _, samples: 0.001 * samples).step_seconds


@pytest.mark.parametrize("batch", [32 * 32, 32 * 32 + 5])
def test_represented_workers_take_about_as_long_as_planned_ones(batch: int) -> None:
    """The last worker determines the step time; an earlier start of the first worker makes little difference."""
    represented = alike_workers_plan(MODEL, 32, batch, "nccl")
    individual = DataParallel().plan(MODEL, 32, batch, "nccl")
    assert step_seconds(represented, 32) == pytest.approx(step_seconds(individual, 32), rel=0.05)
    assert represented.bytes_per_step == individual.bytes_per_step


def test_a_plan_of_thousands_of_workers_is_as_short_as_that_of_32() -> None:
    few, many = (alike_workers_plan(MODEL, devices, 8 * devices + 5, "gloo") for devices in (32, 4096))
    assert len(many.operations) == len(few.operations)


def test_devices_without_samples_are_not_in_the_plan() -> None:
    plan = alike_workers_plan(MODEL, 32, 3, "nccl")
    assert [(step.rank, step.count) for step in plan.operations if step.phase == "forward"] == [(0, 2), (31, 1)]


def shufflenet(devices: int, host_factor: float = 1.0) -> tuple[Predictor, float, float]:
    """A model with little work per module: predictor, measured seconds of a step, and of one device's step."""
    [row] = [
        row
        for row in load_data_parallel()
        if (row.model, row.precision, row.gpu, row.devices) == ("shufflenet_v2_x0_5", "fp16", "A100-SXM4-40GB", devices)
    ]
    cluster = replace(cluster_of("4 x a100-nvlink"), host_factor=host_factor)
    return Predictor(data_parallel_profile(row), cluster), row.seconds, row.one_gpu_seconds


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_replicating_modules_on_the_host_makes_small_models_slower_than_one_device(devices: int) -> None:
    predictor, measured, alone = shufflenet(devices)
    prediction = predictor.predict(DataParallel("threads"), devices, 12 * devices)
    assert prediction.seconds == pytest.approx(measured, rel=0.15)
    assert prediction.seconds > 1.9 * alone
    assert prediction.bottleneck == "launch"


def test_a_slower_host_takes_longer_to_replicate_modules() -> None:
    usual, slow = (
        shufflenet(4, factor)[0].simulate(DataParallel("threads"), 4, 48).step_seconds for factor in (1.0, 2.0)
    )
    per_module = 1e-6 * (REPLICATION.copy_us + REPLICATION.call_us)
    assert slow - usual == pytest.approx(166 * per_module * 2**1.1, rel=0.01)  # the device's step hides none of it


def test_a_long_step_hides_the_calls_of_replicas_but_not_their_copies() -> None:
    cost = ReplicationCost(copy_us=120, call_us=60, exponent=1.0, launch_us=250)
    work = cost.work(modules=100, module_calls=200, devices=2)
    assert work is not None
    assert work.seconds(0.050) == pytest.approx(0.024)  # the host launches for 50 ms, and has no time left
    assert work.seconds(0.056) == pytest.approx(0.018)
    assert work.seconds(10.0) == pytest.approx(0.012)
    assert cost.work(100, 200, devices=1) is None


def test_a_module_that_is_called_several_times_is_copied_once() -> None:
    once, several = (REPLICATION.work(modules, 171, 2) for modules in (171, 126))
    assert once is not None
    assert several is not None
    assert once.us - several.us == pytest.approx(45 * REPLICATION.copy_us)
