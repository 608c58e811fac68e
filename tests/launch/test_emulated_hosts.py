"""Tests of emulated hosts: namespaces, link speed and removal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.launch.emulated_hosts import Host, call_on_host, emulate_hosts, obstacle, parse_link

needs_namespaces = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))

WAITING = "while True: time.sleep(0.01)"
"""A loop instead of signal.pause(), which would miss a signal that arrives just before it."""
ENDINGS = {
    "done": "pass",
    "raised": "raise ValueError('error in the block')",
    "interrupted": WAITING,
    "killed": WAITING,
}
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
LAUNCHER = """
import sys, time
from scalewise.launch.emulated_hosts import emulate_hosts
with emulate_hosts(3, "1gbit") as hosts:
    print(hosts[0].namespace, flush=True)
    sys.stdin.readline()
    {ending}
"""


def root_interfaces() -> set[str]:
    return {entry.name for entry in Path("/sys/class/net").iterdir()}


def interfaces(host: Host) -> set[str]:
    listing = call_on_host(
        host, lambda: subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    )
    return set(re.findall(r"^\d+: (\w+)", listing.stdout, re.MULTILINE))


def named_namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def transfer_seconds(source: Host, target: Host, size_bytes: int) -> float:
    with call_on_host(target, lambda: socket.create_server((target.address, 0))) as listener:
        sender = call_on_host(source, lambda: socket.create_connection(listener.getsockname()))
        receiver, _ = listener.accept()
    with sender, receiver:
        sending = threading.Thread(target=sender.sendall, args=(bytes(size_bytes),))
        started = time.perf_counter()
        sending.start()
        remaining = size_bytes
        while remaining:
            remaining -= len(receiver.recv(1 << 20))
        sending.join()
        return time.perf_counter() - started


@pytest.mark.parametrize(
    ("link", "bits_per_second"),
    [("500kbit", 500_000), ("200mbit", 200_000_000), ("2.5gbit", 2_500_000_000), ("10gbit", 10_000_000_000)],
)
def test_link_speeds_are_parsed(link: str, bits_per_second: int) -> None:
    assert parse_link(link) == bits_per_second


@pytest.mark.parametrize("link", ["", "1", "gbit", "1GB", "1 gbit", "0mbit", "-1gbit", "1gbit/s", "1tbit"])
def test_an_invalid_link_speed_is_refused_with_examples(link: str) -> None:
    with pytest.raises(UserError, match=rf"^cannot read link '{re.escape(link)}'; .*200mbit, 1gbit"):
        parse_link(link)


@pytest.mark.parametrize("hosts", [0, 1, 9])
def test_a_host_count_out_of_range_is_refused(hosts: int) -> None:
    with (
        pytest.raises(UserError, match=f"^cannot emulate {hosts} hosts; valid: 2 to 8$"),
        emulate_hosts(hosts, "1gbit"),
    ):
        pass


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="need the command 'ip', which is not installed"), emulate_hosts(2, "1gbit"):
        pass


@needs_namespaces
def test_without_root_the_missing_capability_is_named() -> None:
    script = (
        "import os; from scalewise.launch.emulated_hosts import obstacle; "
        "os.setresuid(65534, 65534, 65534); print(obstacle())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "need root: this process lacks CAP_NET_ADMIN and CAP_SYS_ADMIN" in result.stdout


@needs_namespaces
def test_hosts_reach_each_other_and_their_own_loopback() -> None:
    with emulate_hosts(8, "1gbit") as hosts:
        assert [host.name for host in hosts] == [f"host{i}" for i in range(8)]
        assert all(interfaces(host) == {"lo", host.interface} for host in hosts)
        for source, target in [(0, 7), (7, 0), (3, 4)]:
            transfer_seconds(hosts[source], hosts[target], 1000)
        with call_on_host(hosts[2], lambda: socket.create_server(("127.0.0.1", 0))) as listener:
            call_on_host(hosts[2], lambda: socket.create_connection(listener.getsockname())).close()
            # Each host has its own loopback interface.
            with pytest.raises(ConnectionRefusedError):
                call_on_host(hosts[3], lambda: socket.create_connection(listener.getsockname()))


@needs_namespaces
def test_the_machines_network_is_not_changed() -> None:
    before, names = root_interfaces(), named_namespaces()
    with emulate_hosts(2, "1gbit"), emulate_hosts(2, "1gbit"):
        assert root_interfaces() == before
        assert named_namespaces() == names


@pytest.mark.serial
@needs_namespaces
def test_a_link_has_the_given_speed_in_both_directions() -> None:
    with emulate_hosts(2, "200mbit") as hosts:
        line_seconds = 10e6 * 8 / 200e6
        for source, target in [hosts, reversed(hosts)]:
            seconds = transfer_seconds(source, target, 10_000_000)
            # Two full token buckets (50 kB each) may pass early; headers and acknowledgements take 5 %.
            assert 0.98 * line_seconds < seconds < 1.5 * line_seconds


@needs_namespaces
def test_two_senders_share_the_receivers_link() -> None:
    with emulate_hosts(3, "200mbit") as (first, second, target):
        senders = [
            threading.Thread(target=transfer_seconds, args=(source, target, 4_000_000)) for source in (first, second)
        ]
        started = time.perf_counter()
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert time.perf_counter() - started > 0.98 * 8e6 * 8 / 200e6


@needs_namespaces
@pytest.mark.parametrize("ending", ENDINGS)
def test_hosts_are_removed_however_the_launcher_ends(ending: str) -> None:
    before, names = root_interfaces(), named_namespaces()
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(ending=ENDINGS[ending])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        namespace = os.open(launcher.stdout.readline().strip(), os.O_RDONLY)
        # This descriptor keeps host 0 alive after the launcher; its end of the link disappears with the bridge.
        survivor = Host("host0", Path(f"/proc/self/fd/{namespace}"), "10.0.0.1", "wire0")
        assert interfaces(survivor) == {"lo", "wire0"}
        assert Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text() == ""
        launcher.stdin.write("continue\n")
        launcher.stdin.flush()
        if ending in SIGNALS:
            launcher.send_signal(SIGNALS[ending])
    try:
        deadline = time.monotonic() + 60
        while interfaces(survivor) != {"lo"}:
            assert time.monotonic() < deadline, "the bridge outlived its launcher"
    finally:
        os.close(namespace)
    assert root_interfaces() == before
    assert named_namespaces() == names
