"""Steps simulated on small clusters whose seconds can be found by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.collectives.send import Send
from scalewise.plan import Footprint, Matrix, PlanBuilder, Section, alike_sends
from scalewise.simulation.conduct import Conduct
from scalewise.simulation.layout import packed
from scalewise.simulation.network import Network, Traffic
from scalewise.simulation.simulate import Simulated, Simulator
from scalewise.strategies.registry import STRATEGIES, strategy_of

GB = 10**9
DEVICE = Device("card", 4, memory_GB=8, peak_TFLOPS=10, memory_GBps=1e9, launch_us=0)
"""With a memory in which moving bytes costs nothing."""
BOX = Cluster("box", 1, 4, (DEVICE,), (Link("devices", "pcie", GBps=1.0, latency_us=0.0),))
MODEL = Footprint(parameter_bytes=(GB,), input_bytes=0, target_bytes=0, output_bytes=0)
CUT = replace(
    MODEL,
    parameter_bytes=(GB // 2, GB // 2),
    parameter_names=("1.weight", "0.weight"),
    matrices=(
        Matrix("0", "columns", "0", 8, 8, 1, 0, 4, 4, True, 1),
        Matrix("1", "rows", "0", 8, 8, 1, 1, 4, 4, True, 1),
    ),
    sections=tuple(Section(str(number), 1, GB // 4, 4, (4,), (4,)) for number in range(4)),
)
"""The same in parts: two matrices that can be cut, four sections to cut between."""
FREE = Conduct(overlap=1.0)
SERIAL = Conduct(overlap=0.0)


def seconds(phase: str, samples: int) -> float:
    """A second per sample: a quarter forward, the rest backward."""
    return samples * {"forward": 0.25, "backward": 0.75}.get(phase, 0.0)


def simulated(
    strategy: str, devices: int, batch: int, cluster: Cluster = BOX, conduct: Conduct = FREE, model: Footprint = MODEL
) -> Simulated:
    simulator = Simulator(Network(cluster, packed(cluster, devices)), conduct)
    return simulator.simulate(strategy_of(strategy).plan(model, devices, batch, cluster.backend), seconds)


def test_one_device_takes_its_compute() -> None:
    step = simulated("single", 1, 8)
    assert step.step_seconds == pytest.approx(8)
    assert step.timeline.phases == pytest.approx({"load": 0, "forward": 2, "loss": 0, "backward": 6, "update": 0})


@pytest.mark.parametrize("devices", [2, 4])
def test_an_all_reduce_follows_the_last_gradient(devices: int) -> None:
    """2 S (N-1)/N over each link, after all of backward where there is one bucket."""
    step = simulated("mirrored", devices, 8)
    assert step.step_seconds == pytest.approx(8 / devices + 2 * (devices - 1) / devices)
    assert step.timeline.phases["reduce"] == pytest.approx(2 * (devices - 1) / devices)


def test_buckets_travel_beside_backward() -> None:
    """1 s forward; backward ends at 4 s, its first half with the first bucket; each bucket takes a second."""
    halves = replace(MODEL, parameter_bytes=(GB, GB))
    step = simulated("mirrored", 2, 8, model=halves)
    assert step.step_seconds == pytest.approx(5)
    assert step.timeline.phases["reduce"] == pytest.approx(1)
    links = [span for span in step.timeline.spans if span.lane == "network"]
    assert [(span.start, span.seconds) for span in links] == [pytest.approx((2.5, 1)), pytest.approx((4, 1))]


def test_without_overlap_every_transfer_costs_the_device_its_seconds() -> None:
    halves = replace(MODEL, parameter_bytes=(GB, GB))
    assert simulated("mirrored", 2, 8, conduct=SERIAL, model=halves).step_seconds == pytest.approx(6)


def test_pipelined_copies_are_flat_in_the_devices() -> None:
    """torch.nn.DataParallel: 2 S over each link however many devices."""
    for devices in (2, 3, 4):
        step = simulated("data-parallel:engine=threads", devices, 12, conduct=SERIAL)
        assert step.step_seconds == pytest.approx(12 / devices + 2)


def test_point_to_point_through_one_device_grows_with_them() -> None:
    for devices in (2, 3, 4):
        step = simulated("data-parallel", devices, 12)
        # The broadcast is staggered, so devices start one after the other.
        assert step.step_seconds == pytest.approx(12 / devices + 2 * (devices - 1), rel=0.35)


def test_a_shared_bridge_carries_everything_in_turn() -> None:
    shared = replace(BOX, links=(replace(BOX.links[0], shared=True),))
    own = simulated("mirrored", 4, 4).step_seconds - 1
    assert simulated("mirrored", 4, 4, shared).step_seconds - 1 == pytest.approx(4 * own)


def test_the_slowest_link_of_a_ring_over_hosts_sets_its_pace() -> None:
    slow = Link("hosts", "slow", GBps=0.1, latency_us=0, shared=True)
    hosts = replace(BOX, hosts=2, devices_per_host=2, devices=(replace(DEVICE, count=2),), links=(*BOX.links, slow))
    assert simulated("mirrored", 4, 4, hosts).step_seconds - 1 == pytest.approx(1.5 / 0.1, rel=0.01)


def test_latency_is_paid_at_every_step_of_a_ring() -> None:
    late = replace(BOX, links=(replace(BOX.links[0], latency_us=1e6),))
    tiny = replace(MODEL, parameter_bytes=(4,))
    assert simulated("mirrored", 4, 4, late, model=tiny).step_seconds == pytest.approx(1 + 6, rel=1e-6)


def test_servers_ends_are_shared_by_their_workers() -> None:
    """4 workers push and pull 1 GB each through one server: 4 s each way, one piece behind the other."""
    step = simulated("parameter-server:piece_MB=10", 4, 4, replace(BOX, backend="gloo"))
    assert 4.25 < step.step_seconds < 4.35
    two = simulated("parameter-server:servers=2,piece_MB=10", 4, 4, replace(BOX, backend="gloo"))
    assert 2.25 < two.step_seconds < 2.35


def test_alike_sends_take_as_long_together_as_one_by_one() -> None:
    """Also over hosts, where some workers share a server's host and some do not."""
    slow = Link("hosts", "slow", GBps=0.5, latency_us=0, shared=True)
    hosts = replace(BOX, hosts=3, devices_per_host=2, devices=(replace(DEVICE, count=2),), links=(*BOX.links, slow))
    network = Network(hosts, packed(hosts, 6))
    together, apart = Traffic(network), Traffic(network)
    for send in (Send(0, 6, GB), Send(6, 0, GB), Send(0, 7, GB)):
        last = max(apart.carry(each, 0.0) for each in alike_sends(send, 6))
        assert together.carry_alike(send, 6, 0.0) == pytest.approx(last)


def test_a_straggler_holds_everybody_up() -> None:
    network = Network(BOX, packed(BOX, 2))
    plan = strategy_of("mirrored").plan(MODEL, 2, 8)
    step = Simulator(network, FREE, {1: 0.5}).simulate(plan, seconds)
    assert step.step_seconds == pytest.approx(8 + 1, rel=1e-4)


def test_the_slower_kind_of_device_sets_the_pace() -> None:
    half = replace(DEVICE, count=2, peak_TFLOPS=5)
    mixed = replace(BOX, devices=(replace(DEVICE, count=2), half))
    assert simulated("mirrored", 2, 8, mixed).step_seconds == pytest.approx(4 + 1)
    assert simulated("mirrored", 4, 8, mixed).step_seconds == pytest.approx(4 + 1.5)


def test_cores_that_copy_their_own_bytes_compute_less() -> None:
    """A rank sends and receives 1 GB each at 2 GB/s: a second of its core."""
    copying = replace(BOX, backend="gloo", devices=(replace(DEVICE, copy_GBps=2.0),))
    halves = replace(MODEL, parameter_bytes=(GB, GB))
    assert simulated("mirrored", 2, 8, copying, model=halves).step_seconds == pytest.approx(6, rel=0.001)


def test_gradients_are_copied_into_buckets_at_the_speed_of_memory_while_all_use_it() -> None:
    """2 GB moved at 4 GB/s, which take twice as long while the other device does the same."""
    slow = replace(BOX, devices=(replace(DEVICE, memory_GBps=4.0, beside_memory=2.0),))
    assert simulated("mirrored", 2, 8, slow).step_seconds == pytest.approx(4 + 1 + 1)
    assert simulated("mirrored", 1, 8, slow).step_seconds == pytest.approx(8)


def test_cores_fetch_from_host_memory_themselves() -> None:
    """Three copies of a gigabyte at 2 GB/s, none beside compute; then half of the gradients are added up."""
    memory = Link("host-device", "memory", GBps=2.0, latency_us=0, by_device=True)
    host = replace(BOX, backend="gloo", links=(*BOX.links, memory))
    assert simulated("central-storage", 2, 8, host).step_seconds == pytest.approx(4 + 1.5, rel=1e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("devices", [1, 3, 4])
def test_phases_sum_to_the_step_on_every_rank(strategy: str, devices: int) -> None:
    whole_groups = {"single": 1, "hybrid": 2 * -(-devices // 2)}
    step = simulated(strategy, whole_groups.get(strategy, devices), 7, model=CUT)
    totals: dict[int, float] = {}
    for span in step.timeline.spans:
        if span.lane == "compute":
            totals[span.rank] = totals.get(span.rank, 0.0) + span.seconds
    assert totals
    for total in totals.values():
        assert total == pytest.approx(step.step_seconds)
    assert sum(step.timeline.phases.values()) == pytest.approx(step.step_seconds)


def test_waiting_is_named_after_what_is_waited_for() -> None:
    builder = PlanBuilder()
    first = builder.compute("forward", 0, 4)
    (send,) = strategy_of("data-parallel").plan(MODEL, 2, 2).sends[-1:]
    ends = builder.transfer("gather", [replace(send, source=0, target=1)], {0: first})
    builder.compute("backward", 1, 4, ends[1])
    step = Simulator(Network(BOX, packed(BOX, 2)), FREE).simulate(builder.plan(), seconds)
    waits = [(span.phase, span.seconds) for span in step.timeline.spans if span.rank == 1 and span.lane == "compute"]
    assert waits == [("gather", pytest.approx(1, rel=1e-3)), ("idle", pytest.approx(1)), ("backward", 3)]


HANDED_OVER = replace(BOX, backend="gloo", devices=(replace(DEVICE, launch_us=1e6, host_memory_GBps=1.0),))
"""GPUs whose ranks talk through the host, which takes a second for every call, and moves 1 GB/s in its memory."""


def worked(cluster: Cluster, **options: Any) -> float:
    builder = PlanBuilder()
    builder.compute("forward", 0, 8, share=0.5, **options)
    return Simulator(Network(cluster, packed(cluster, 2)), FREE).simulate(builder.plan(), seconds).step_seconds


def test_calls_of_a_host_that_hands_over_count_and_others_are_made_in_time() -> None:
    """Forward of 8 samples is 2 s, of which a half is asked for."""
    assert worked(HANDED_OVER) == pytest.approx(1)
    assert worked(HANDED_OVER, calls=3) == pytest.approx(1 + 3)
    for others in (BOX, replace(HANDED_OVER, devices=(replace(DEVICE, launch_us=1e6),))):
        assert worked(others, calls=3, called_share=1.0) == pytest.approx(1)


@pytest.mark.parametrize(("called_share", "calls", "expected"), [(1.0, 0, 1.0), (8.0, 0, 2.0), (1.0, 3, 3.25)])
def test_calls_are_hidden_behind_compute_that_takes_longer(called_share: float, calls: int, expected: float) -> None:
    """A sample, which is all calling, takes 0.25 s."""
    assert worked(HANDED_OVER, called_share=called_share, calls=calls) == pytest.approx(expected)


def test_what_is_moved_in_host_memory_goes_at_its_pace() -> None:
    assert worked(HANDED_OVER, moved_bytes=3 * GB) == pytest.approx(1, abs=1e-6)
    assert worked(HANDED_OVER, moved_bytes=3 * GB, in_host_memory=True) == pytest.approx(1 + 3)
    assert worked(replace(BOX, devices=(DEVICE,)), moved_bytes=GB, in_host_memory=True) == pytest.approx(1 + 0.1)


def test_who_meets_sends_nothing_and_waits_a_ring_of_delays() -> None:
    slow = replace(BOX, links=(replace(BOX.links[0], latency_us=1e6),))
    builder = PlanBuilder()
    builder.meet(4, "nccl", builder.compute("forward", 0, 8, count=4))
    plan = builder.plan()
    assert plan.bytes_per_step == 0
    assert Simulator(Network(slow, packed(slow, 4)), FREE).simulate(plan, seconds).step_seconds == pytest.approx(2 + 6)
    assert builder.meet(1, "nccl", (0,)) == (0,)


def test_what_a_device_sends_and_receives_at_once_shares_its_process() -> None:
    """2 GB pass the first device at 1.25 GB/s together, 1 GB each way at 1 GB/s otherwise."""
    halved = replace(BOX, links=(replace(BOX.links[0], both_ways_GBps=1.25),))
    for cluster, seconds in ((BOX, 1.0), (halved, 1.6)):
        traffic = Traffic(Network(cluster, packed(cluster, 4)))
        ends = [traffic.carry(send, 0.0) for send in (Send(0, 1, GB), Send(2, 0, GB))]
        assert max(ends) == pytest.approx(seconds)


def test_what_leaves_a_host_goes_through_the_devices_own_lanes() -> None:
    """Four ports of 12 GB/s are there for a collective; one device that hears from all has its PCIe, and no more."""
    cluster = cluster_of("8 x v100-nvlink, 2 hosts")
    network = Network(cluster, packed(cluster, 16))
    between, lanes = cluster.link("hosts"), cluster.link("host-device")
    assert between is not None
    assert lanes is not None
    assert network.path(8, 0).seconds_per_byte == pytest.approx(1e-9 / between.GBps)
    alone = Traffic(network, alone=True)
    ends = [alone.carry(Send(rank, 0, 120_000_000), 0.0) for rank in range(8, 16)]
    assert ends[-1] == pytest.approx(8 * 0.12 / lanes.GBps, rel=0.01)
