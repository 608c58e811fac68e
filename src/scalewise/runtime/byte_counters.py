"""Bytes sent per step, as counted by the kernel."""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from scalewise.core.errors import RunFailed

Address = tuple[str, int]

# Offsets of three 64-bit counters in `struct tcp_info` of Linux 4.19 and later. The payload without retransmissions is
# `bytes_sent - bytes_retrans`; `bytes_acked` would count the SYN of the connecting side as one byte.
_RECEIVED_AT, _SENT_AT, _RETRANSMITTED_AT = 128, 200, 208
_INFO_BYTES = 216


@dataclass(frozen=True)
class Flow:
    """Payload bytes in both directions, without protocol headers and retransmissions."""

    sent_bytes: int
    received_bytes: int

    def __add__(self, other: Flow) -> Flow:
        return Flow(self.sent_bytes + other.sent_bytes, self.received_bytes + other.received_bytes)

    def __sub__(self, other: Flow) -> Flow:
        return Flow(self.sent_bytes - other.sent_bytes, self.received_bytes - other.received_bytes)


_NOTHING = Flow(0, 0)


@dataclass(frozen=True)
class Traffic:
    """Payload bytes between two snapshots, in total and by address of the peer."""

    sent_bytes: int
    received_bytes: int
    by_peer: Mapping[Address, Flow]


@dataclass(frozen=True)
class Counters:
    """Open connections by (local, peer) address, with the bytes since each was opened."""

    connections: Mapping[tuple[Address, Address], Flow]

    def __sub__(self, earlier: Counters) -> Traffic:
        """Return the traffic since `earlier`; connections closed since then are not included."""
        by_peer: dict[Address, Flow] = {}
        for ends, flow in self.connections.items():
            _, peer = ends
            by_peer[peer] = by_peer.get(peer, _NOTHING) + flow - earlier.connections.get(ends, _NOTHING)
        total = sum(by_peer.values(), _NOTHING)
        return Traffic(total.sent_bytes, total.received_bytes, by_peer)


ignored_ports: set[int] = set()
"""Ports whose traffic is never counted: of the connection to the command of a run on real hosts."""


def available() -> bool:
    """Return whether this kernel counts bytes by connection."""
    if sys.platform != "linux":
        return False
    with socket.socket() as probe:
        return len(_tcp_info(probe)) == _INFO_BYTES


def snapshot(except_port: int | None = None) -> Counters:
    """Read the counters of all connections except those with `except_port` (of the rendezvous store) at either end.

    Takes about 20 microseconds per open socket: call it between blocks of steps, when nothing is being transferred.
    """
    if not available():
        raise RunFailed(f"bytes by connection are not available on {sys.platform}: they need Linux 4.19 or later")
    connections: dict[tuple[Address, Address], Flow] = {}
    for connection in _sockets():
        with closing(connection):
            try:
                local, peer = connection.getsockname()[:2], connection.getpeername()[:2]
                info = _tcp_info(connection)
            except OSError:  # listening, or closed by its owner meanwhile
                continue
        if except_port not in (local[1], peer[1]) and peer[1] not in ignored_ports:
            connections[local, peer] = _flow(info)
    return Counters(connections)


def _sockets() -> Iterator[socket.socket]:
    """Yield duplicates of this process's TCP sockets; closing a duplicate leaves the original open."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            number = int(entry.name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            duplicate = socket.socket(fileno=os.dup(number))
        except OSError:  # closed since it was listed
            continue
        if duplicate.proto == socket.IPPROTO_TCP:
            yield duplicate
        else:
            duplicate.close()


def _tcp_info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)


def _flow(info: bytes) -> Flow:
    received, sent, retransmitted = (
        struct.unpack_from("=Q", info, at)[0] for at in (_RECEIVED_AT, _SENT_AT, _RETRANSMITTED_AT)
    )
    return Flow(sent - retransmitted, received)


Barrier = Callable[[], object]


@dataclass
class StepTraffic:
    """Bytes that one rank sends and receives per step.

    Counters are read between two barriers, when nothing else is transferred. The bytes of the barriers are measured
    once and subtracted.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    steps: int = 0
    servers: Mapping[Address, int] = field(default_factory=dict)
    """Number of the parameter server at each peer address."""
    except_port: int | None = None
    """Port of the rendezvous store, whose traffic (checkpoints may use it within a step) is not counted."""
    by_server: dict[int, Flow] = field(default_factory=dict)
    before: Counters | None = None
    barriers: Traffic | None = None

    @property
    def sent_per_step(self) -> float:
        return self.sent_bytes / self.steps

    @property
    def received_per_step(self) -> float:
        return self.received_bytes / self.steps

    def with_server_per_step(self, server: int) -> tuple[float, float]:
        """Return the bytes per step sent to and received from a server."""
        flow = self.by_server[server]
        return flow.sent_bytes / self.steps, flow.received_bytes / self.steps

    def start(self, barrier: Barrier) -> None:
        barrier()
        if self.barriers is None:
            before = snapshot(self.except_port)
            barrier()
            barrier()
            self.barriers = snapshot(self.except_port) - before
        self.before = snapshot(self.except_port)
        barrier()

    def stop(self, steps: int, barrier: Barrier) -> None:
        """Add the traffic of the `steps` steps since `start`."""
        assert self.before is not None
        assert self.barriers is not None
        barrier()
        traffic = snapshot(self.except_port) - self.before
        barrier()
        self.sent_bytes += traffic.sent_bytes - self.barriers.sent_bytes
        self.received_bytes += traffic.received_bytes - self.barriers.received_bytes
        self.steps += steps
        self._add_to_servers(traffic)
        self.before = None

    def add_lines(self, traffic: Traffic, steps: int) -> None:
        """Add the traffic of the connections to servers, which needs no barrier because only this rank uses them."""
        self._add_to_servers(traffic)
        self.sent_bytes += sum(flow.sent_bytes for flow in self.by_server.values())
        self.received_bytes += sum(flow.received_bytes for flow in self.by_server.values())
        self.steps += steps

    def _add_to_servers(self, traffic: Traffic) -> None:
        for peer, flow in traffic.by_peer.items():
            if peer in self.servers:
                number = self.servers[peer]
                self.by_server[number] = self.by_server.get(number, Flow(0, 0)) + flow
