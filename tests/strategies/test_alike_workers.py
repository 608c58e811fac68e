"""DataParallel's workers, planned once."""

from __future__ import annotations

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.plan import Footprint, Plan
from scalewise.simulation.conduct import DDP
from scalewise.simulation.layout import packed
from scalewise.simulation.network import Network
from scalewise.simulation.simulate import Simulator
from scalewise.strategies.alike_workers import alike_workers_plan
from scalewise.strategies.data_parallel import DataParallel

MODEL = Footprint(parameter_bytes=(10**7, 9 * 10**7), input_bytes=150_000, target_bytes=4, output_bytes=4_000)


def step_seconds(plan: Plan, devices: int) -> float:
    cluster = cluster_of(f"8 x a100-nvlink, {devices // 8} hosts, infiniband-200")
    network = Network(cluster, packed(cluster, devices))
    return Simulator(network, DDP).simulate(plan, lambda _, samples: 0.001 * samples).step_seconds


@pytest.mark.parametrize("batch", [32 * 32, 32 * 32 + 5])
def test_alike_workers_take_about_what_they_do_one_by_one(batch: int) -> None:
    """The last one decides; that the first could begin before it hides little."""
    alike = alike_workers_plan(MODEL, 32, batch, "nccl")
    every = DataParallel().plan(MODEL, 32, batch, "nccl")
    assert step_seconds(alike, 32) == pytest.approx(step_seconds(every, 32), rel=0.05)
    assert alike.bytes_per_step == every.bytes_per_step


def test_thousands_of_workers_are_planned_as_a_few() -> None:
    few, many = (alike_workers_plan(MODEL, devices, 8 * devices + 5, "gloo") for devices in (32, 4096))
    assert len(many.operations) == len(few.operations)


def test_devices_without_samples_take_no_part() -> None:
    plan = alike_workers_plan(MODEL, 32, 3, "nccl")
    assert [(step.rank, step.count) for step in plan.operations if step.phase == "forward"] == [(0, 2), (31, 1)]
