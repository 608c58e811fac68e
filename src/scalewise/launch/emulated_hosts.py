"""Emulated hosts: network namespaces joined by shaped links.

    host0 [wire0] ---- rate ---- [port0]
    host1 [wire0] ---- rate ---- [port1]  bridge, in a namespace of its own
    host2 [wire0] ---- rate ---- [port2]

The namespaces have no names. A namespace exists as long as the launcher keeps a file descriptor of it open or a rank
runs in it. When these processes end (kill -9 included), the kernel removes the namespace and its interfaces. So
no clean-up is needed, two runs cannot collide, and `ip link` and `ip netns` of the machine do not list them.
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

from scalewise.core.errors import RunFailed, UserError

Result = TypeVar("Result")

MAX_HOSTS = 8

_CLONE_NEWNET = 0x40000000
_CAPABILITY_BITS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_BITS_PER_SECOND = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_MOST_BITS_PER_SECOND = 10**12
_INTERFACE = "wire0"


@dataclass(frozen=True)
class Host:
    """An emulated host; the path `namespace` is valid until `emulate_hosts` ends."""

    name: str
    namespace: Path
    address: str
    interface: str


@contextmanager
def emulate_hosts(hosts: int, link: str) -> Iterator[list[Host]]:
    """Create hosts joined by links of the given speed ('1gbit') per direction; remove them when the block ends."""
    bits_per_second = parse_link(link)
    if not 2 <= hosts <= MAX_HOSTS:
        raise UserError(f"cannot emulate {hosts} hosts; valid: 2 to {MAX_HOSTS}")
    if problem := obstacle():
        raise UserError(problem)
    with ExitStack() as stack:

        def open_namespace() -> Path:
            descriptor = _in_thread(_new_namespace)
            stack.callback(os.close, descriptor)
            return Path(f"/proc/{os.getpid()}/fd/{descriptor}")

        switch = open_namespace()
        emulated = [Host(f"host{i}", open_namespace(), f"10.0.0.{i + 1}", _INTERFACE) for i in range(hosts)]
        _connect(switch, emulated, bits_per_second)
        yield emulated


def enter_host(host: Host) -> None:
    """Move the calling thread, and threads and processes it starts later, to a host.

    Call this before any socket is opened: existing sockets stay where they are. Set GLOO_SOCKET_IFNAME to
    `host.interface` before creating the process group, otherwise gloo looks for peers on loopback.
    """
    _enter(host.namespace)


def call_on_host(host: Host, function: Callable[[], Result]) -> Result:
    """Call a function on a host, in a new thread; sockets that it opens stay on that host."""
    return _call_in(host.namespace, function)


def parse_link(link: str) -> int:
    """'200mbit' -> 200_000_000 bits per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", link)
    bits_per_second = round(float(match[1]) * _BITS_PER_SECOND[match[2]]) if match else 0
    if bits_per_second > _MOST_BITS_PER_SECOND:
        raise UserError(f"link '{link}' is too fast to emulate; valid: up to 1000gbit")
    if not bits_per_second:
        raise UserError(f"cannot read link '{link}'; valid: for example 500kbit, 200mbit, 1gbit, 2.5gbit, 10gbit")
    return bits_per_second


def obstacle() -> str | None:
    """Explain why this process cannot emulate hosts; None if it can."""
    if sys.platform != "linux":
        return f"emulated hosts need Linux network namespaces; this is {sys.platform}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"emulated hosts need the command '{tool}', which is not installed; install iproute2"
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    capabilities = int(effective[1], 16) if effective else 0
    missing = [name for name, bit in _CAPABILITY_BITS.items() if not capabilities >> bit & 1]
    if missing:
        return f"emulated hosts need root: this process lacks {' and '.join(missing)}; run it as root"
    return None


def _connect(switch: Path, hosts: list[Host], bits_per_second: int) -> None:
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
    """tc command that limits the rate at which packets leave an interface, with a token bucket.

    The bucket holds 2 ms of traffic (at least two packets): enough to keep the link busy between timer ticks, too
    little to make a transfer faster than the link. The queue holds 50 ms, as in a switch, and at least 128 KiB, so
    that a slow link delays packets instead of dropping them.
    """
    bytes_per_second = bits_per_second / 8
    burst_bytes = max(round(bytes_per_second * 0.002), 4096)
    limit_bytes = burst_bytes + max(round(bytes_per_second * 0.050), 128 * 1024)
    return f"qdisc add dev {interface} root tbf rate {bits_per_second}bit burst {burst_bytes} limit {limit_bytes}"


def _run_in(namespace: Path, tool: str, commands: list[str]) -> None:
    run = partial(subprocess.run, [tool, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True)
    result = _call_in(namespace, run)
    if result.returncode:
        raise RunFailed(f"emulating hosts failed: {tool} reports '{' '.join(result.stderr.split())}'")


def _new_namespace() -> int:
    """Create a namespace, move the calling thread into it, and return a descriptor of it."""
    _system_call("unshare", _CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _system_call("setns", descriptor, _CLONE_NEWNET)  # os.setns needs Python 3.12
    finally:
        os.close(descriptor)


def _system_call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _call_in(namespace: Path, function: Callable[[], Result]) -> Result:
    def call() -> Result:
        _enter(namespace)
        return function()

    return _in_thread(call)


def _in_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a short-lived thread, so that the calling thread stays in its own namespace."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(function).result()
