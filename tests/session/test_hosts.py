"""Rehearsed hosts: real namespaces, their speed, and that nothing is left of them."""

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

from scalewise.errors import UserError
from scalewise.session.hosts import Host, call_on, obstacle, parse_link, rehearse

needs_namespaces = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))

WAITING = "while True: time.sleep(0.01)"
"""Not signal.pause(): an interrupt that comes right before it would be waited for in vain."""
ENDINGS = {
    "done": "pass",
    "raised": "raise ValueError('as a rank might')",
    "interrupted": WAITING,
    "killed": WAITING,
}
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
LAUNCHER = """
import sys, time
from scalewise.session.hosts import rehearse
with rehearse(3, "1gbit") as hosts:
    print(hosts[0].namespace, flush=True)
    sys.stdin.readline()
    {ending}
"""


def root_interfaces() -> set[str]:
    return {entry.name for entry in Path("/sys/class/net").iterdir()}


def interfaces(host: Host) -> set[str]:
    listing = call_on(host, lambda: subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True))
    return set(re.findall(r"^\d+: (\w+)", listing.stdout, re.MULTILINE))


def named_namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def transfer_seconds(source: Host, target: Host, size_bytes: int) -> float:
    with call_on(target, lambda: socket.create_server((target.address, 0))) as listener:
        sender = call_on(source, lambda: socket.create_connection(listener.getsockname()))
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
def test_links_are_read_in_bits(link: str, bits_per_second: int) -> None:
    assert parse_link(link) == bits_per_second


@pytest.mark.parametrize("link", ["", "1", "gbit", "1GB", "1 gbit", "0mbit", "-1gbit", "1gbit/s", "1tbit"])
def test_another_link_is_refused_with_examples(link: str) -> None:
    with pytest.raises(UserError, match=rf"^cannot read link '{re.escape(link)}'; .*200mbit, 1gbit"):
        parse_link(link)


@pytest.mark.parametrize("hosts", [0, 1, 9])
def test_a_count_out_of_range_is_refused(hosts: int) -> None:
    with pytest.raises(UserError, match=f"^cannot rehearse {hosts} hosts; valid: 2 to 8$"), rehearse(hosts, "1gbit"):
        pass


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="need the command 'ip', which is not installed"), rehearse(2, "1gbit"):
        pass


@needs_namespaces
def test_without_root_the_missing_capability_is_named() -> None:
    script = (
        "import os; from scalewise.session.hosts import obstacle; os.setresuid(65534, 65534, 65534); print(obstacle())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "need root: this process lacks CAP_NET_ADMIN and CAP_SYS_ADMIN" in done.stdout


@needs_namespaces
def test_every_host_reaches_every_other_and_itself_by_loopback() -> None:
    with rehearse(8, "1gbit") as hosts:
        assert [host.name for host in hosts] == [f"host{i}" for i in range(8)]
        assert all(interfaces(host) == {"lo", host.interface} for host in hosts)
        for source, target in [(0, 7), (7, 0), (3, 4)]:
            transfer_seconds(hosts[source], hosts[target], 1000)
        with call_on(hosts[2], lambda: socket.create_server(("127.0.0.1", 0))) as listener:
            call_on(hosts[2], lambda: socket.create_connection(listener.getsockname())).close()
            # Loopback is each host's own.
            with pytest.raises(ConnectionRefusedError):
                call_on(hosts[3], lambda: socket.create_connection(listener.getsockname()))


@needs_namespaces
def test_nothing_shows_in_the_machines_own_network() -> None:
    before, names = root_interfaces(), named_namespaces()
    with rehearse(2, "1gbit"), rehearse(2, "1gbit"):
        assert root_interfaces() == before
        assert named_namespaces() == names


@needs_namespaces
def test_a_link_is_as_slow_as_it_says_in_both_directions() -> None:
    with rehearse(2, "200mbit") as hosts:
        line_seconds = 10e6 * 8 / 200e6
        for source, target in [hosts, reversed(hosts)]:
            seconds = transfer_seconds(source, target, 10_000_000)
            # Two full token buckets (50 kB each) may run ahead; headers and acknowledgements take 5 %.
            assert 0.98 * line_seconds < seconds < 1.5 * line_seconds


@needs_namespaces
def test_two_senders_share_the_receivers_link() -> None:
    with rehearse(3, "200mbit") as (first, second, target):
        senders = [threading.Thread(target=transfer_seconds, args=(one, target, 4_000_000)) for one in (first, second)]
        started = time.perf_counter()
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert time.perf_counter() - started > 0.98 * 8e6 * 8 / 200e6


@needs_namespaces
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_however_the_launcher_ends(ending: str) -> None:
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
        # Kept open here, host 0 outlives its launcher and bears witness: its end of the link goes when the bridge does.
        witness = Host("host0", Path(f"/proc/self/fd/{namespace}"), "10.0.0.1", "wire0")
        assert interfaces(witness) == {"lo", "wire0"}
        assert Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text() == ""
        launcher.stdin.write("go on\n")
        launcher.stdin.flush()
        if ending in SIGNALS:
            launcher.send_signal(SIGNALS[ending])
    try:
        deadline = time.monotonic() + 10
        while interfaces(witness) != {"lo"}:
            assert time.monotonic() < deadline, "the bridge outlived its launcher"
    finally:
        os.close(namespace)
    assert root_interfaces() == before
    assert named_namespaces() == names
