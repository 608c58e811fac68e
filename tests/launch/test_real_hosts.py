"""Tests of runs on real hosts: assignment of ranks, and two hosts that are processes of this machine."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from contextlib import ExitStack
from queue import Queue
from time import monotonic
from typing import Any

import pytest

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.host_pool import Listener, connect
from scalewise.launch.placement import Placement
from scalewise.launch.real_hosts import RealHost, RealHosts, assign, commanding
from scalewise.strategies.registry import strategy_of
from scalewise.training.train import devices_asked
from tests.command import fork


def host(number: int, devices: int, gpus: int = 0) -> RealHost:
    return RealHost(number, f"node{number}", f"10.0.0.{number + 1}", "eth0", devices, gpus)


@pytest.mark.parametrize(
    ("sizes", "devices", "servers", "ranks_on", "servers_on"),
    [
        ((2, 2), 3, 0, (0, 0, 1), ()),
        ((2, 2), 1, 1, (0,), (1,)),
        ((2, 2), 2, 2, (0, 1), (1, 0)),
        ((2, 2), 1, 3, (0,), (1, 0, 1)),
        ((4, 1), 4, 1, (0, 0, 0, 0), (1,)),
        ((1, 1, 1), 1, 2, (0,), (2, 1)),
    ],
)
def test_devices_fill_the_first_hosts_and_servers_take_one_rank_of_each_from_the_last(
    sizes: tuple[int, ...], devices: int, servers: int, ranks_on: tuple[int, ...], servers_on: tuple[int, ...]
) -> None:
    hosts = [host(number, size) for number, size in enumerate(sizes)]
    assert assign(hosts, devices, servers) == (ranks_on, servers_on)


def test_a_settled_placement_names_the_host_of_every_rank() -> None:
    hosts = RealHosts([host(0, 2, gpus=2), host(1, 2, gpus=2)], None)
    placement = hosts.settle(Placement(3))
    assert (placement.device_kind, placement.hosts, placement.ranks_on) == ("cuda", 2, (0, 0, 1))
    assert [placement.host_of(rank) for rank in range(3)] == [0, 0, 1]
    assert hosts.settle(placement) == placement


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 5}, "5 devices need 5 ranks and this run has 4, on 2 hosts"),
        ({"devices": 4, "servers": 1}, "4 devices and 1 server need 5 ranks and this run has 4"),
        ({"devices": 2, "hosts": 2, "link": "1gbit"}, "hosts cannot be emulated in a run on real hosts"),
        ({"devices": 2, "slow": {0: 0.5}}, "slow ranks and slices are not available on real hosts"),
        ({"devices": 4, "device_kind": "cuda"}, "2 ranks need CUDA devices on node1, which has 0"),
    ],
)
def test_impossible_placements_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        RealHosts([host(0, 2, gpus=2), host(1, 2)], None).settle(Placement(**options))
    assert message in str(refused.value)


def test_a_lost_host_is_named_when_ranks_are_missing() -> None:
    hosts = RealHosts([host(0, 2), host(1, 2)], None, {1: "the connection broke"})
    assert hosts.settle(Placement(2, "cpu")).ranks_on == (0, 0)
    with pytest.raises(RunFailed, match=r"3 devices need 3 ranks and 2 remain.*node1 \(the connection broke\)"):
        hosts.settle(Placement(3, "cpu"))


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [("mirrored", 4), ("parameter-server:servers=2", 2), ("single", 1), ("central-storage", 2)],
)
def test_by_default_all_ranks_are_used(strategy: str, devices: int) -> None:
    with commanding(RealHosts([host(0, 2), host(1, 2)], None)):
        assert devices_asked(1, strategy_of(strategy)) == devices
        assert devices_asked(3, strategy_of(strategy)) == 3


def test_strangers_cannot_connect() -> None:
    greeted: list[object] = []
    listener = Listener("127.0.0.1", b"secret", lambda hello, _: greeted.append(hello))
    try:
        with pytest.raises(OSError, match="differs between the hosts"):
            connect(("127.0.0.1", listener.port), b"wrong", "stranger")
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(b"\x00\x00\x00\x04evil")
        connect(("127.0.0.1", listener.port), b"secret", "friend").close()
    finally:
        listener.close()
    assert greeted in ([], ["friend"])  # the last greeting may still be on its way


def test_silent_strangers_neither_delay_others_nor_pile_up() -> None:
    greeted = Queue[object]()
    listener = Listener("127.0.0.1", b"secret", lambda hello, _: greeted.put(hello))
    threads = threading.active_count()
    with ExitStack() as stack:
        stack.callback(listener.close)
        strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(300)]
        for stranger in strangers:
            stack.enter_context(stranger)
        stack.enter_context(connect(("127.0.0.1", listener.port), b"secret", "friend"))
        assert greeted.get(timeout=20) == "friend"
        for stranger in strangers[:44]:  # ended for those that came later
            stranger.settimeout(20)
            while stranger.recv(4096):
                pass
        deadline = monotonic() + 20
        while threading.active_count() - threads > 256 + 2 and monotonic() < deadline:
            threading.Event().wait(0.05)  # threads of ended connections end a moment later
        assert threading.active_count() - threads <= 256 + 2


def start(hosts: int, local_rank: int, local_ranks: int, number: int, port: int) -> subprocess.Popen[str]:
    ranks = {
        "RANK": number * local_ranks + local_rank,
        "WORLD_SIZE": hosts * local_ranks,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_ranks,
        "GROUP_RANK": number,
        "GROUP_WORLD_SIZE": hosts,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    environment = {name: str(value) for name, value in ranks.items()}
    return fork(module="tests.launch.real_hosts_script", env_more=environment)


@pytest.fixture(scope="module")
def two_hosts() -> tuple[dict[str, Any], list[int]]:
    """What the script prints, and the exit codes of its processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ExitStack() as stack:
        processes = [stack.enter_context(start(2, rank, 2, number, port)) for number in (0, 1) for rank in (0, 1)]
        for process in processes:
            stack.callback(process.kill)
        outputs = [process.communicate(timeout=400) for process in processes]
    assert outputs[0][0], outputs[0][1]
    return json.loads(outputs[0][0]), [process.returncode for process in processes]


@pytest.mark.slow
class TestTwoHosts:
    """One run of `real_hosts_script`, in which the second host is lost at the end."""

    def test_sessions_of_every_size(self, two_hosts: tuple[dict[str, Any], list[int]]) -> None:
        happened, codes = two_hosts
        assert not happened["under_torchrun"]
        assert [happened[f"hosts of {devices}"] for devices in (1, 2, 3)] == [[0], [0, 0], [0, 0, 1]]
        assert [happened[f"total of {devices}"][0] for devices in (1, 2, 3)] == [1.0, 3.0, 6.0]
        assert happened["hosts of servers"] == [1, 0]
        assert happened["reports"] == [[rank, step] for rank in range(3) for step in range(2)]
        assert codes == [7, 7, -9, 1]

    @pytest.mark.parametrize(
        ("failure", "message"),
        [
            ("killed", "rank 2 on {} (host 1) was killed (signal 9)"),
            ("raised", "ValueError: learning rate is not a number"),
            ("hung", "rank 2 on {} (host 1) did not answer within 8 s"),
            ("lost", "rank 2 on {} (host 1) was lost: the connection to {} (host 1) broke"),
            ("too few", "3 devices need 3 ranks and 2 remain, because a host was lost: {} (host 1)"),
        ],
    )
    def test_failures_name_the_rank_and_its_host(
        self, two_hosts: tuple[dict[str, Any], list[int]], failure: str, message: str
    ) -> None:
        assert message.replace("{}", socket.gethostname()) in two_hosts[0][failure]

    def test_the_run_continues_on_the_remaining_host(self, two_hosts: tuple[dict[str, Any], list[int]]) -> None:
        assert two_hosts[0]["devices after the loss"] == [2, 1]
        assert two_hosts[0]["after the loss"] == [3.0, 3.0]
