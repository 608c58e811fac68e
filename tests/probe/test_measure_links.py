"""This machine measured as a cluster: timing on real ranks, and the cluster built from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from uuid import uuid4

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.cluster import Cluster, read_cluster
from scalewise.hardware.collectives import PIECE_MB, Collective
from scalewise.launch.placement import Placement
from scalewise.launch.worker import Worker
from scalewise.predict.collective_seconds import collective_seconds, link_bytes
from scalewise.predict.network import Network, packed
from scalewise.probe import link_benchmarks, measure_links
from scalewise.probe.contention import ComputeDuringReduce, DeviceRates, rates_in_turn
from scalewise.probe.link_benchmarks import ClockReading, ConcurrentTransfers, two_at_once
from scalewise.probe.link_fit import LinkMeasurements, cluster_from_measurements, fit_operation
from tests.conftest import SessionOf

SIZES = [1024 * 4**power for power in range(9)]
PACE = DeviceRates(0.05, 12.0, 6.0, 2.0)


def points(operation: str, devices: int, latency: float, GBps: float) -> list[tuple[int, float]]:
    name = "all_reduce" if operation == "ring" else operation
    return [(size, latency + link_bytes(name, devices, size) / (GBps * 1e9)) for size in SIZES]


def measurements(hosts: int = 1, during_reduce: ComputeDuringReduce | None = None) -> LinkMeasurements:
    operations = [
        fitted
        for operation, GBps in (("send", 1.5), ("all_reduce", 0.8), ("ring", 0.9))
        for fitted in fit_operation(operation, 2, hosts, points(operation, 2, 200e-6, GBps))
    ]
    return LinkMeasurements(
        "a core",
        8.0,
        operations,
        [],
        ConcurrentTransfers(1.9, 1.6),
        during_reduce,
        PACE,
        replace(PACE, memory_GBps=8.0),
        5.0,
        0.0,
        False,
        None,
        "now",
    )


def read_clock_as_on_two_machines(worker: Worker) -> ClockReading:
    file = Path(gettempdir()) / uuid4().hex
    link_benchmarks.BOOT = file  # a kernel of its own
    file.write_text(str(worker.rank))
    try:
        return link_benchmarks.read_clock(worker)
    finally:
        link_benchmarks.BOOT = Path("/proc/sys/kernel/random/boot_id")
        file.unlink()


def seconds(cluster: Cluster, collective: Collective) -> float:
    return collective_seconds(collective, Network(cluster, packed(cluster, 2)))


def test_predicted_collectives_take_the_measured_seconds() -> None:
    cluster = cluster_from_measurements(Placement(2, "cpu"), measurements())
    assert seconds(cluster, Collective("all_reduce", "gloo", 2, 10**7)) == pytest.approx(200e-6 + 1e7 / 0.8e9, rel=1e-3)
    ring = Collective("all_reduce", "gloo", 2, 10**7, piece_MB=PIECE_MB)
    assert seconds(cluster, ring) == pytest.approx(200e-6 + 1e7 / 0.9e9, rel=1e-3)
    path = Network(cluster, packed(cluster, 2)).path(0, 1, sockets=True, bytes=10**7)
    assert path.seconds_per_byte == pytest.approx(1 / 1.5e9, rel=1e-3)


def test_transfers_that_slow_each_other_down_share_a_channel() -> None:
    [memory, sockets] = cluster_from_measurements(Placement(2, "cpu"), measurements()).links
    assert (memory.between, memory.GBps) == ("host-device", 5.0)
    assert (sockets.between, sockets.shared) == ("devices", True)
    apart = replace(measurements(), concurrent=ConcurrentTransfers(1.1, 2.9))
    assert not cluster_from_measurements(Placement(2, "cpu"), apart).links[1].shared


@pytest.mark.parametrize(("devices", "shared"), [(2, False), (4, True)])
def test_only_four_slices_show_whether_they_share_a_channel(devices: int, shared: bool) -> None:
    """Both directions between two slices compete inside their processes; four slices have two separate pairs."""
    link = cluster_from_measurements(Placement(devices, "slice"), measurements()).link("devices")
    assert link is not None
    assert (link.shared, link.both_ways_GBps) == (shared, 1.6)


def test_measurements_between_hosts_become_links_between_hosts() -> None:
    cluster = cluster_from_measurements(Placement(2, "cpu", hosts=2, link="1gbit"), measurements(hosts=2))
    assert [(link.between, link.kind) for link in cluster.links] == [("host-device", "memory"), ("hosts", "1gbit")]
    assert (cluster.hosts, cluster.devices_per_host, cluster.servers_apart) == (2, 1, True)
    assert seconds(cluster, Collective("all_reduce", "gloo", 2, 10**7)) == pytest.approx(200e-6 + 1e7 / 0.8e9, rel=1e-3)


def test_compute_lost_to_communication_becomes_a_copy_bandwidth() -> None:
    during_reduce = ComputeDuringReduce(
        alone_seconds=1.0, seconds=1.5, reduced=10, bytes=16 * 2**20, reduce_seconds=0.05
    )
    [device] = cluster_from_measurements(Placement(2, "cpu"), measurements(during_reduce=during_reduce)).devices
    # In an all-reduce of two ranks, each sends the tensor once and receives it once.
    assert device.copy_GBps == pytest.approx(2 * 16 * 2**20 / 0.05 / 1e9, rel=1e-3)
    assert device.beside_memory == pytest.approx(1.5)


def test_every_operation_is_timed_on_ranks(session_of: SessionOf) -> None:
    first, second = session_of(2).run(link_benchmarks.time_operations, 2, measure_links.OPERATIONS, 1e-4, (1024, 4096))
    assert [(timed.operation, timed.bytes) for timed in first] == [
        (name, size) for name in measure_links.OPERATIONS for size in (1024, 4096)
    ]
    assert [len(timed.spans) for timed in first] == [len(timed.spans) for timed in second]
    assert all(start < end for timed in first for start, end in timed.spans)


def test_a_call_lasts_from_the_last_start_to_the_last_end() -> None:
    early = link_benchmarks.TimedCalls("send", 4, [(0.0, 1.5), (10.0, 10.5), (20.0, 23.0)])
    late = link_benchmarks.TimedCalls("send", 4, [(1.0, 2.0), (10.1, 11.1), (20.0, 22.0)])
    assert link_benchmarks.seconds_of([early, late]).seconds == pytest.approx(1.0)


@pytest.mark.parametrize(("disturbed", "unstable"), [(8, False), (12, True)])
def test_calls_that_other_programs_disturb_do_not_count(disturbed: int, unstable: bool) -> None:
    """Disturbed calls take ten times as long. If most are disturbed, the operation is marked."""
    spans = [(float(start), start + (0.5 if start < disturbed else 0.05)) for start in range(20)]
    seconds = link_benchmarks.seconds_of([link_benchmarks.TimedCalls("send", 4, spans)] * 2)
    assert seconds.seconds == pytest.approx(0.05)
    assert seconds.unstable is unstable


def test_a_delayed_rank_does_not_make_a_call_look_short() -> None:
    """The receiver starts 0.3 s late in most calls, when the data is there already: from its start they take 1 ms."""
    sent = [(float(start), start + 0.05) for start in range(20)]
    received = [(start + (0.3 if start % 4 else 0.01), start + (0.301 if start % 4 else 0.06)) for start in range(20)]
    calls = [link_benchmarks.TimedCalls("send", 4, spans) for spans in (sent, received)]
    assert link_benchmarks.seconds_of(calls).seconds == pytest.approx(0.05)


def test_ranks_between_the_ends_of_a_send_do_not_count(session_of: SessionOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_links, "OPERATIONS", ("send",))
    ends = [(float(start), start + 0.05) for start in range(20)]
    late = [(start + 0.4, start + 0.4) for start in range(20)]
    by_rank = [
        [link_benchmarks.TimedCalls("send", size, spans) for size in (1024, 4096)] for spans in (ends, late, ends)
    ]
    session = session_of(3)
    monkeypatch.setattr(session, "run", lambda *_, **__: by_rank)
    [fitted], _ = measure_links._operations(session, 3, 0.1, lambda _: None)
    assert [size for size, _ in fitted.points] == [1024, 4096]
    assert [seconds for _, seconds in fitted.points] == pytest.approx([0.05, 0.05])


def test_unstable_operations_are_named_in_the_report_and_in_the_cluster() -> None:
    measured = measurements()
    shaky = replace(measured, operations=[replace(measured.operations[0], unstable=True), *measured.operations[1:]])
    cluster = cluster_from_measurements(Placement(2, "cpu"), shaky)
    assert cluster.source == "measured by scalewise doctor, now, with unstable timings"
    [warning] = measure_links._report(Placement(2, "cpu"), shaky, cluster, None).warnings
    assert warning.startswith("The seconds of send varied by more than a factor of two")
    assert measure_links._report(Placement(2, "cpu"), measured, cluster, None).warnings == []


def test_ranks_on_one_machine_share_a_clock(session_of: SessionOf) -> None:
    assert [reading.ahead_seconds for reading in session_of(2).run(link_benchmarks.read_clock)] == [0.0, 0.0]


def test_clocks_of_two_machines_are_compared(session_of: SessionOf) -> None:
    """Ranks that believe to be on different machines find the difference by pings: none, as they share a clock."""
    first, second = session_of(2).run(read_clock_as_on_two_machines)
    assert first.ahead_seconds == 0.0
    assert 0 < abs(second.ahead_seconds) < 0.1


def test_rates_alone_and_together_are_measured_in_turn(session_of: SessionOf) -> None:
    first, second = session_of(2).run(rates_in_turn, 0.01)
    assert first.together == second.together
    assert second.alone == second.together  # only the first rank is measured alone
    assert min(first.alone.TFLOPS, first.alone.memory_GBps, first.together.copy_GBps) > 0


def test_ranks_beyond_the_count_are_not_timed(session_of: SessionOf) -> None:
    *participants, other = session_of(3).run(link_benchmarks.time_operations, 2, ("broadcast",), 1e-4, (1024, 4096))
    assert [len(timed) for timed in participants] == [2, 2]
    assert other == []


def test_all_ranks_return_the_same_transfer_ratio(session_of: SessionOf) -> None:
    first, second = session_of(2).run(two_at_once, 2**20)
    assert first == second
    assert first.over_alone > 0
    assert first.both_ways_GBps > 0


@pytest.mark.slow
def test_the_measured_cluster_is_written_to_a_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_links, "OPERATIONS", ("send", "all_reduce"))
    path = tmp_path / "here.toml"
    progress: list[object] = []
    measured = measure_links.measure_links(2, device_kind="cpu", quick=True, save=path, on_progress=progress.append)
    cluster = read_cluster(path)
    assert (cluster.name, cluster.size, cluster.backend, cluster.knowledge) == ("here-2x-cpu", 2, "gloo", "measured")
    assert {entry.operation for entry in cluster.measured} == {"send", "all_reduce"}
    assert "all_reduce over 2 of 2 devices" in progress
    assert f"written to {path}" in str(measured.report)
    assert "no NVIDIA GPU" in str(measured.report)


def test_devices_that_cannot_be_divided_among_hosts_are_refused() -> None:
    with pytest.raises(UserError, match="3 devices cannot be divided evenly among 2 hosts"):
        measure_links.measure_links(3, device_kind="cpu", hosts=2, link="1gbit")
