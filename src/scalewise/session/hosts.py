"""Rehearsed hosts: network namespaces joined by shaped links, a slow network of several hosts on one Linux machine.

    host0 [wire0] ---- rate ---- [port0]
    host1 [wire0] ---- rate ---- [port1]  bridge, in a namespace of its own
    host2 [wire0] ---- rate ---- [port2]

The namespaces have no names: what keeps each alive is an open file descriptor of the process that rehearses, and later
the ranks inside it. When those end, however they end (kill -9 included), the kernel removes the namespaces with their
interfaces and queues. So there is nothing to sweep up, two runs cannot collide, and the machine's own `ip link` and
`ip netns` never show anything of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from scalewise.errors import RunFailed, UserError

Result = TypeVar("Result")

MOST_HOSTS = 8

_CLONE_NEWNET = 0x40000000
_CAPABILITY_BITS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_BITS_PER_SECOND = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_INTERFACE = "wire0"


@dataclass(frozen=True)
class Host:
    """One rehearsed host; `namespace` is the path that `enter` opens, valid while the rehearsal lasts."""

    name: str
    namespace: Path
    address: str
    interface: str


@contextmanager
def rehearse(hosts: int, link: str) -> Iterator[list[Host]]:
    """Hosts that reach each other at the speed of `link` ('1gbit'), in each direction; gone when the block ends."""
    bits_per_second = parse_link(link)
    if not 2 <= hosts <= MOST_HOSTS:
        raise UserError(f"cannot rehearse {hosts} hosts; valid: 2 to {MOST_HOSTS}")
    if sentence := obstacle():
        raise UserError(sentence)
    with ExitStack() as held:

        def hold_namespace() -> Path:
            descriptor = _in_thread(_new_namespace)
            held.callback(os.close, descriptor)
            return Path(f"/proc/{os.getpid()}/fd/{descriptor}")

        switch = hold_namespace()
        made = [Host(f"host{i}", hold_namespace(), f"10.0.0.{i + 1}", _INTERFACE) for i in range(hosts)]
        _wire(switch, made, bits_per_second)
        yield made


def enter(host: Host) -> None:
    """Move the calling thread, and the threads and processes that it starts from now on, to a host.

    A rank calls this first of all; sockets that exist already stay where they are. gloo has to be told the interface
    (GLOO_SOCKET_IFNAME=host.interface) before its group is made: left alone it would look for peers on loopback.
    """
    _enter(host.namespace)


def call_on(host: Host, function: Callable[[], Result]) -> Result:
    """The function's result on a host, by a thread of its own; sockets opened there belong to that host ever after."""
    return _call_in(host.namespace, function)


def parse_link(link: str) -> int:
    """'200mbit' -> 200_000_000 bits per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", link)
    bits_per_second = round(float(match[1]) * _BITS_PER_SECOND[match[2]]) if match else 0
    if not bits_per_second:
        raise UserError(f"cannot read link '{link}'; valid are for example 500kbit, 200mbit, 1gbit, 2.5gbit, 10gbit")
    return bits_per_second


def obstacle() -> str | None:
    """What keeps this process from rehearsing hosts, in one sentence; None if nothing does."""
    if sys.platform != "linux":
        return f"rehearsed hosts need Linux network namespaces; this is {sys.platform}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"rehearsed hosts need the command '{tool}', which is not installed; install iproute2"
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    held = int(effective[1], 16) if effective else 0
    missing = [name for name, bit in _CAPABILITY_BITS.items() if not held >> bit & 1]
    if missing:
        return f"rehearsed hosts need root: this process lacks {' and '.join(missing)}; run it as root"
    return None


def _wire(switch: Path, hosts: list[Host], bits_per_second: int) -> None:
    ports = [f"port{number}" for number in range(len(hosts))]
    links = ["link add bridge type bridge", "link set bridge up"]
    for port, host in zip(ports, hosts, strict=True):
        links += [
            f"link add {port} type veth peer name {host.interface} netns {host.namespace}",
            f"link set {port} master bridge up",
        ]
    _run_in(switch, "ip", links)
    _run_in(switch, "tc", [_shape(port, bits_per_second) for port in ports])
    for host in hosts:
        address = f"address add {host.address}/24 dev {host.interface}"
        _run_in(host.namespace, "ip", ["link set lo up", address, f"link set {host.interface} up"])
        _run_in(host.namespace, "tc", [_shape(host.interface, bits_per_second)])


def _shape(interface: str, bits_per_second: int) -> str:
    """A token bucket on what leaves an interface; with one at either end a link is shaped both ways.

    The bucket holds 2 ms of line time (and two packets at least): enough to keep the line full between timer ticks,
    too little to let a transfer slip through ahead of its time. The queue behind it holds 50 ms, as a switch's would,
    and at least 128 KiB, so that a slow link delays a window of packets and does not drop it.
    """
    bytes_per_second = bits_per_second / 8
    burst_bytes = max(round(bytes_per_second * 0.002), 4096)
    limit_bytes = burst_bytes + max(round(bytes_per_second * 0.050), 128 * 1024)
    return f"qdisc add dev {interface} root tbf rate {bits_per_second}bit burst {burst_bytes} limit {limit_bytes}"


def _run_in(namespace: Path, tool: str, commands: list[str]) -> None:
    run = partial(subprocess.run, [tool, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True)
    done = _call_in(namespace, run)
    if done.returncode:
        raise RunFailed(f"rehearsing hosts failed: {tool} says '{' '.join(done.stderr.split())}'")


def _new_namespace() -> int:
    """A descriptor of a fresh namespace, made by moving the calling thread into it."""
    _system_call("unshare", _CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _system_call("setns", descriptor, _CLONE_NEWNET)  # os.setns arrives with Python 3.12
    finally:
        os.close(descriptor)


def _system_call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _call_in(namespace: Path, function: Callable[[], Result]) -> Result:
    def there() -> Result:
        _enter(namespace)
        return function()

    return _in_thread(there)


def _in_thread(function: Callable[[], Result]) -> Result:
    """A namespace belongs to a thread: one that ends at once leaves the caller where it was."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(function).result()
