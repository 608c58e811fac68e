"""Steps simulated on small clusters, compared with times computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.hardware.transfers import Send
from scalewise.predict.network import Network, Traffic, packed
from scalewise.predict.simulator import OverlapModel, SimulatedStep, Simulator, spans_of
from scalewise.strategies.plan import Footprint, Operation, PlanBuilder, Section, SplittableLayer, alike_sends
from scalewise.strategies.registry import STRATEGIES, strategy_of

GB = 10**9
DEVICE = Device("card", 4, memory_GB=8, peak_TFLOPS=10, memory_GBps=1e9, launch_us=0)
"""Device with memory so fast that copies take no time."""
BOX = Cluster("box", 1, 4, (DEVICE,), (Link("devices", "pcie", GBps=1.0, latency_us=0.0),))
MODEL = Footprint(parameter_bytes=(GB,), input_bytes=0, target_bytes=0, output_bytes=0)
SPLITTABLE = replace(
    MODEL,
    parameter_bytes=(GB // 2, GB // 2),
    parameter_names=("1.weight", "0.weight"),
    matrices=(
        SplittableLayer("0", "columns", "0", 8, 8, 1, 0, 4, 4, True, 1),
        SplittableLayer("1", "rows", "0", 8, 8, 1, 1, 4, 4, True, 1),
    ),
    sections=tuple(Section(str(number), 1, GB // 4, 4, (4,), (4,)) for number in range(4)),
)
"""Model with two matrices that can be split and four sections."""
FREE = OverlapModel(overlap=1.0)
SERIAL = OverlapModel(overlap=0.0)


def seconds(phase: str, samples: int) -> float:
    """A second per sample: a quarter in forward, the rest in backward."""
    return samples * {"forward": 0.25, "backward": 0.75}.get(phase, 0.0)


def simulated(
    strategy: str,
    devices: int,
    batch: int,
    cluster: Cluster = BOX,
    overlap_model: OverlapModel = FREE,
    model: Footprint = MODEL,
) -> SimulatedStep:
    simulator = Simulator(Network(cluster, packed(cluster, devices)), overlap_model)
    return simulator.simulate(strategy_of(strategy).plan(model, devices, batch, cluster.backend), seconds)


def test_one_device_takes_its_compute_time() -> None:
    step = simulated("single", 1, 8)
    assert step.step_seconds == pytest.approx(8)
    assert step.timeline.phases == pytest.approx({"load": 0, "forward": 2, "loss": 0, "backward": 6, "update": 0})


@pytest.mark.parametrize("devices", [2, 4])
def test_a_single_bucket_is_reduced_after_backward(devices: int) -> None:
    """Every link carries 2 S (N-1)/N bytes after backward."""
    step = simulated("mirrored", devices, 8)
    assert step.step_seconds == pytest.approx(8 / devices + 2 * (devices - 1) / devices)
    assert step.timeline.phases["reduce"] == pytest.approx(2 * (devices - 1) / devices)


def test_buckets_are_reduced_during_backward() -> None:
    """Forward ends at 1 s, the first half of backward at 2.5 s and backward at 4 s; each bucket takes a second."""
    halves = replace(MODEL, parameter_bytes=(GB, GB))
    step = simulated("mirrored", 2, 8, model=halves)
    assert step.step_seconds == pytest.approx(5)
    assert step.timeline.phases["reduce"] == pytest.approx(1)
    links = [span for span in step.timeline.spans if span.lane == "network"]
    assert [(span.start, span.seconds) for span in links] == [pytest.approx((2.5, 1)), pytest.approx((4, 1))]


def test_without_overlap_transfers_block_the_device() -> None:
    halves = replace(MODEL, parameter_bytes=(GB, GB))
    assert simulated("mirrored", 2, 8, overlap_model=SERIAL, model=halves).step_seconds == pytest.approx(6)


def test_torch_data_parallel_copies_take_the_same_time_on_any_number_of_devices() -> None:
    """Every link carries 2 S bytes, because NCCL pipelines broadcast and reduce."""
    for devices in (2, 3, 4):
        step = simulated("data-parallel:engine=threads", devices, 12, overlap_model=SERIAL)
        assert step.step_seconds == pytest.approx(12 / devices + 2)


def test_point_to_point_copies_through_one_device_grow_with_the_devices() -> None:
    for devices in (2, 3, 4):
        step = simulated("data-parallel", devices, 12)
        # Devices receive the model, and start, one after the other.
        assert step.step_seconds == pytest.approx(12 / devices + 2 * (devices - 1), rel=0.35)


def test_a_shared_link_carries_one_message_at_a_time() -> None:
    shared = replace(BOX, links=(replace(BOX.links[0], shared=True),))
    separate = simulated("mirrored", 4, 4).step_seconds - 1
    assert simulated("mirrored", 4, 4, shared).step_seconds - 1 == pytest.approx(4 * separate)


def test_the_slowest_link_limits_a_ring_over_hosts() -> None:
    slow = Link("hosts", "slow", GBps=0.1, latency_us=0, shared=True)
    hosts = replace(BOX, hosts=2, devices_per_host=2, devices=(replace(DEVICE, count=2),), links=(*BOX.links, slow))
    assert simulated("mirrored", 4, 4, hosts).step_seconds - 1 == pytest.approx(1.5 / 0.1, rel=0.01)


def test_every_step_of_a_ring_has_latency() -> None:
    late = replace(BOX, links=(replace(BOX.links[0], latency_us=1e6),))
    tiny = replace(MODEL, parameter_bytes=(4,))
    assert simulated("mirrored", 4, 4, late, model=tiny).step_seconds == pytest.approx(1 + 6, rel=1e-6)


def test_workers_share_the_links_of_a_server() -> None:
    """Four workers push and pull 1 GB each through one server: 4 s in each direction, overlapping by pieces."""
    step = simulated("parameter-server:piece_MB=10", 4, 4, replace(BOX, backend="gloo"))
    assert 4.25 < step.step_seconds < 4.35
    two = simulated("parameter-server:servers=2,piece_MB=10", 4, 4, replace(BOX, backend="gloo"))
    assert 2.25 < two.step_seconds < 2.35


def test_represented_sends_take_as_long_as_individual_ones() -> None:
    """Some workers are on a server's host, others are not."""
    slow = Link("hosts", "slow", GBps=0.5, latency_us=0, shared=True)
    hosts = replace(BOX, hosts=3, devices_per_host=2, devices=(replace(DEVICE, count=2),), links=(*BOX.links, slow))
    network = Network(hosts, packed(hosts, 6))
    together, individual = Traffic(network), Traffic(network)
    for send in (Send(0, 6, GB), Send(6, 0, GB), Send(0, 7, GB)):
        last = max(individual.carry(one, 0.0) for one in alike_sends(send, 6))
        assert together.carry_alike(send, 6, 0.0) == pytest.approx(last)


def test_a_straggler_slows_down_a_synchronous_step() -> None:
    network = Network(BOX, packed(BOX, 2))
    plan = strategy_of("mirrored").plan(MODEL, 2, 8)
    step = Simulator(network, FREE, {1: 0.5}).simulate(plan, seconds)
    assert step.step_seconds == pytest.approx(8 + 1, rel=1e-4)


def test_the_slowest_kind_of_device_limits_the_step() -> None:
    half = replace(DEVICE, count=2, peak_TFLOPS=5)
    mixed = replace(BOX, devices=(replace(DEVICE, count=2), half))
    assert simulated("mirrored", 2, 8, mixed).step_seconds == pytest.approx(4 + 1)
    assert simulated("mirrored", 4, 8, mixed).step_seconds == pytest.approx(4 + 1.5)


def test_copies_by_a_core_delay_its_compute() -> None:
    """A rank sends 1 GB and receives 1 GB; copying them at 2 GB/s takes a second of its core."""
    copying = replace(BOX, backend="gloo", devices=(replace(DEVICE, copy_GBps=2.0),))
    halves = replace(MODEL, parameter_bytes=(GB, GB))
    assert simulated("mirrored", 2, 8, copying, model=halves).step_seconds == pytest.approx(6, rel=0.001)


def test_copies_into_buckets_take_the_bandwidth_of_busy_memory() -> None:
    """Moving 2 GB at 4 GB/s takes twice as long while the other device does the same."""
    slow = replace(BOX, devices=(replace(DEVICE, memory_GBps=4.0, beside_memory=2.0),))
    assert simulated("mirrored", 2, 8, slow).step_seconds == pytest.approx(4 + 1 + 1)
    assert simulated("mirrored", 1, 8, slow).step_seconds == pytest.approx(8)


def test_cores_copy_from_host_memory_themselves() -> None:
    """Three copies of 1 GB at 2 GB/s do not overlap with compute."""
    memory = Link("host-device", "memory", GBps=2.0, latency_us=0, by_device=True)
    host = replace(BOX, backend="gloo", links=(*BOX.links, memory))
    assert simulated("central-storage", 2, 8, host).step_seconds == pytest.approx(4 + 1.5, rel=1e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("devices", [1, 3, 4])
def test_phases_sum_to_the_step_on_every_rank(strategy: str, devices: int) -> None:
    counts = {"single": 1, "hybrid": 2 * -(-devices // 2)}
    step = simulated(strategy, counts.get(strategy, devices), 7, model=SPLITTABLE)
    totals: dict[int, float] = {}
    for span in step.timeline.spans:
        if span.lane == "compute":
            totals[span.rank] = totals.get(span.rank, 0.0) + span.seconds
    assert totals
    for total in totals.values():
        assert total == pytest.approx(step.step_seconds)
    assert sum(step.timeline.phases.values()) == pytest.approx(step.step_seconds)


def test_waiting_has_the_phase_of_the_transfer_waited_for() -> None:
    builder = PlanBuilder()
    first = builder.compute("forward", 0, 4)
    (send,) = strategy_of("data-parallel").plan(MODEL, 2, 2).sends[-1:]
    ends = builder.transfer("gather", [replace(send, source=0, target=1)], {0: first})
    builder.compute("backward", 1, 4, ends[1])
    step = Simulator(Network(BOX, packed(BOX, 2)), FREE).simulate(builder.plan(), seconds)
    waits = [(span.phase, span.seconds) for span in step.timeline.spans if span.rank == 1 and span.lane == "compute"]
    assert waits == [("gather", pytest.approx(1, rel=1e-3)), ("idle", pytest.approx(1)), ("backward", 3)]


HOST_RELAYED = replace(BOX, backend="gloo", devices=(replace(DEVICE, launch_us=1e6, host_memory_GBps=1.0),))
"""GPUs that communicate through the host. A device call takes a second, and host memory moves 1 GB/s."""


def compute_seconds(cluster: Cluster, **options: Any) -> float:
    builder = PlanBuilder()
    builder.compute("forward", 0, 8, share=0.5, **options)
    return Simulator(Network(cluster, packed(cluster, 2)), FREE).simulate(builder.plan(), seconds).step_seconds


def test_device_calls_take_time_only_if_the_host_relays() -> None:
    """Half of forward of 8 samples takes 1 s."""
    assert compute_seconds(HOST_RELAYED) == pytest.approx(1)
    assert compute_seconds(HOST_RELAYED, calls=3) == pytest.approx(1 + 3)
    for others in (BOX, replace(HOST_RELAYED, devices=(replace(DEVICE, launch_us=1e6),))):
        assert compute_seconds(others, calls=3, called_share=1.0) == pytest.approx(1)


@pytest.mark.parametrize(("called_share", "calls", "expected"), [(1.0, 0, 1.0), (8.0, 0, 2.0), (1.0, 3, 3.25)])
def test_device_calls_are_hidden_behind_longer_compute(called_share: float, calls: int, expected: float) -> None:
    """The device calls of a phase take as long as the phase with one sample: 0.25 s."""
    assert compute_seconds(HOST_RELAYED, called_share=called_share, calls=calls) == pytest.approx(expected)


def test_bytes_moved_in_host_memory_take_its_bandwidth() -> None:
    assert compute_seconds(HOST_RELAYED, moved_bytes=3 * GB) == pytest.approx(1, abs=1e-6)
    assert compute_seconds(HOST_RELAYED, moved_bytes=3 * GB, in_host_memory=True) == pytest.approx(1 + 3)
    assert compute_seconds(replace(BOX, devices=(DEVICE,)), moved_bytes=GB, in_host_memory=True) == pytest.approx(
        1 + 0.1
    )


def test_a_barrier_sends_no_bytes_and_takes_the_latency_of_a_ring() -> None:
    slow = replace(BOX, links=(replace(BOX.links[0], latency_us=1e6),))
    builder = PlanBuilder()
    builder.meet(4, "nccl", builder.compute("forward", 0, 8, count=4))
    plan = builder.plan()
    assert plan.bytes_per_step == 0
    assert Simulator(Network(slow, packed(slow, 4)), FREE).simulate(plan, seconds).step_seconds == pytest.approx(2 + 6)
    assert builder.meet(1, "nccl", (0,)) == (0,)


def test_sends_and_receives_share_a_limited_total_bandwidth() -> None:
    """Sending 1 GB and receiving 1 GB takes 1 s at 1 GB/s each way, and 1.6 s with 1.25 GB/s in total."""
    halved = replace(BOX, links=(replace(BOX.links[0], both_ways_GBps=1.25),))
    for cluster, seconds in ((BOX, 1.0), (halved, 1.6)):
        traffic = Traffic(Network(cluster, packed(cluster, 4)))
        ends = [traffic.carry(send, 0.0) for send in (Send(0, 1, GB), Send(2, 0, GB))]
        assert max(ends) == pytest.approx(seconds)


def test_transfers_between_hosts_use_the_devices_own_pcie_lanes() -> None:
    """A collective uses four ports of 12 GB/s; a device that receives from all others is limited by its PCIe link."""
    cluster = cluster_of("8 x v100-nvlink, 2 hosts")
    network = Network(cluster, packed(cluster, 16))
    between, lanes = cluster.link("hosts"), cluster.link("host-device")
    assert between is not None
    assert lanes is not None
    assert (between.ports, between.GBps) == (4, 12)
    assert network.path(8, 0).seconds_per_byte == pytest.approx(1e-9 / 48)
    alone = Traffic(network, alone=True)
    ends = [alone.carry(Send(rank, 0, 120_000_000), 0.0) for rank in range(8, 16)]
    assert ends[-1] == pytest.approx(8 * 0.12 / lanes.GBps, rel=0.01)


def test_the_time_to_name_waits_grows_with_the_operations_and_not_with_their_square() -> None:
    class Counted(list[float]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.reads += 1
            return super().__getitem__(index)

    count = 1000
    operations = [Operation("reduce", 0, send=Send(0, 1, 1)) for _ in range(count)]
    operations += [Operation("forward", 0) for _ in range(count)]
    starts = Counted([*(at + 0.5 for at in range(count)), *(float(at) for at in range(count))])
    ends = Counted([*(at + 0.6 for at in range(count)), *(at + 0.1 for at in range(count))])
    assert (
        sum(span.phase == "reduce" and span.lane == "compute" for span in spans_of(operations, starts, ends)) == count
    )
    assert Counted.reads < 30 * count
