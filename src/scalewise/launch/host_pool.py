"""Command's side of a run on real hosts: connections to the agents, and groups of ranks on several hosts."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from signal import Signals
from threading import Event, Lock, Thread
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.core.errors import RunFailed
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.rank_process import RankSetup, RanksOnHost
from scalewise.launch.real_hosts import RealHosts

SECRET = "SCALEWISE_CLUSTER_SECRET"
"""Environment variable with the secret of the run. Without it, hosts receive a random secret through the rendezvous
store, which is as open as torch.distributed itself."""
IDLE_SECONDS, PROBE_SECONDS, PROBES = 10, 5, 3
"""A silent connection is probed after IDLE_SECONDS; without an answer to PROBES probes the host counts as lost."""
_UNANSWERED_MS = 1000 * (IDLE_SECONDS + PROBES * PROBE_SECONDS)

_MOST_STRANGERS = 256
"""Number of connections that may owe the proof that they know the secret; a further one ends the oldest."""
_GREETING_TIME, _NO_TIMEOUT = struct.pack("ll", 25, 0), struct.pack("ll", 0, 0)
"""Longest time between two messages of a new connection, and none afterwards (struct timeval)."""


class Listener:
    """Accepts connections on one address only, and passes on those that know the secret."""

    def __init__(self, address: str, secret: bytes, on_connection: Callable[[Any, Connection], None]) -> None:
        """`on_connection(hello, connection)` is called in a thread for every connection with its first message."""
        self._socket = socket.create_server((address, 0), backlog=256)
        self._secret = secret
        self._on_connection = on_connection
        self._greeted: dict[socket.socket, None] = {}
        """Connections that have not proved yet that they know the secret, oldest first."""
        self._lock = Lock()
        self.port: int = self._socket.getsockname()[1]
        Thread(target=self._accept, name="host-listener", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                # A duplicate, through which the connection can be ended while its thread reads.
                accepted_again = accepted.dup()
                with self._lock:
                    self._greeted[accepted_again] = None
                    if len(self._greeted) > _MOST_STRANGERS:
                        oldest = next(iter(self._greeted))
                        del self._greeted[oldest]
                        with suppress(OSError):
                            oldest.shutdown(socket.SHUT_RDWR)
                Thread(target=self._greet, args=(accepted, accepted_again), daemon=True).start()

    def _greet(self, accepted: socket.socket, again: socket.socket) -> None:
        connection = _prepared(accepted)
        try:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _GREETING_TIME)
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            hello = pickle.loads(connection.recv_bytes())
            again.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NO_TIMEOUT)
        except (OSError, EOFError, AuthenticationError, AssertionError):
            connection.close()  # not a process of this run
            return
        finally:
            with self._lock:
                self._greeted.pop(again, None)
                again.close()
        self._on_connection(hello, connection)


def connect(address: tuple[str, int], secret: bytes, hello: object) -> Connection:
    """Connect to the command and introduce this process with the message `hello`."""
    connection = _prepared(socket.create_connection(address, timeout=_UNANSWERED_MS / 1000))
    try:
        answer_challenge(connection, secret)
        deliver_challenge(connection, secret)
        connection.send_bytes(pickle.dumps(hello))
    except AuthenticationError:
        connection.close()
        raise OSError(f"the secret in {SECRET} differs between the hosts") from None
    return connection


def _prepared(opened: socket.socket) -> Connection:
    """Turn a socket into a connection that notices the loss of the other host."""
    opened.settimeout(None)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    return Connection(opened.detach())


KILL_SECONDS = 30.0


@dataclass(frozen=True)
class GroupOrder:
    """Request to a host to start its ranks of a group."""

    number: int
    """Number of the group, over all groups of the run."""
    placement: Placement
    group: RankGroup
    ranks: RanksOnHost
    store: tuple[str, int]
    """Address of the store that the ranks share."""
    environment: Mapping[str, str]

    def setup(self, channels: list[Connection]) -> RankSetup:
        return RankSetup(self.placement, self.group, tuple(channels), (), {}, self.environment, None, self.ranks)


class RemoteRanks:
    """Ranks of a group on several hosts, with the interface of a local `Agent`."""

    def __init__(self, pool: HostPool, number: int, hosts: tuple[int, ...]) -> None:
        self._pool, self._number, self._hosts = pool, number, hosts
        self._running = set(hosts)
        self._exits: dict[int, int | str] = {}
        self._problem: str | None = None
        self._killed = False
        self._lock = Lock()
        self._all_ended = Event()
        self.channels: list[Connection] = []
        self.ended: Connection
        self.ended, self._still_running = multiprocessing.Pipe(duplex=False)

    def exits(self) -> dict[int, int | str]:
        """Exit codes of the ranks that failed first, or the reason why the host of a rank was lost."""
        if self._problem and not self._exits:
            raise RunFailed(self._problem)
        return dict(self._exits)

    def has_exited_normally(self, rank: int) -> bool:  # noqa: ARG002
        """False: hosts report failures only."""
        return False

    def signal(self, number: Signals, rank: int) -> None:
        self._pool.send(self._hosts[rank], "signal", self._number, self._hosts[:rank].count(self._hosts[rank]), number)

    @property
    def pids(self) -> list[int]:
        """Empty: process ids of other hosts mean nothing on this one."""
        return []

    def join(self, seconds: float) -> bool:
        return self._all_ended.wait(seconds)

    def kill(self) -> None:
        """End the ranks on all hosts with SIGKILL."""
        with self._lock:
            self._killed = True
        for host in set(self._hosts):
            self._pool.send(host, "kill", self._number)
        deadline = time.monotonic() + KILL_SECONDS
        while not self.join(0.5) and time.monotonic() < deadline:
            for host in list(self._running):
                self._pool.send(host, "kill", self._number)  # the host may only now have started the ranks

    def host_ended(self, host: int, exits: Mapping[int, int | str], problem: str | None = None) -> None:
        """Record that no rank of the group runs on a host any longer, and end the others if one failed."""
        with self._lock:
            if host not in self._running:
                return
            self._running.discard(host)
            failed = bool(exits or problem) and not self._killed
            if failed:
                self._exits.update(exits)
                self._problem = problem
                self._killed = True
            others = list(self._running)
        if failed:
            for other in others:
                self._pool.send(other, "kill", self._number)
        if not others:
            self._still_running.close()
            self._all_ended.set()

    def host_lost(self, host: int, reason: str) -> None:
        self.host_ended(host, {rank: reason for rank, on in enumerate(self._hosts) if on == host}, reason)


class HostPool:
    """Connections of the command to the agents of all hosts."""

    def __init__(self, hosts: RealHosts, address: str, secret: bytes) -> None:
        self.hosts = hosts
        self.address = address
        hosts.pool = self
        self._agents: dict[int, Connection] = {}
        self._joined = {host.number: Event() for host in hosts.hosts}
        self._groups: dict[int, RemoteRanks] = {}
        self._channels: dict[tuple[int, int], Future[Connection]] = {}
        self._started = 0
        self._closing = False
        self._lock = Lock()
        self._listener = Listener(address, secret, self._on_connection)
        self.port = self._listener.port

    def wait_for_hosts(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for host in self.hosts.hosts:
            if not self._joined[host.number].wait(max(0.0, deadline - time.monotonic())):
                raise RunFailed(f"the agent of {host.name} did not connect within {seconds:g} s")

    def start(
        self,
        placement: Placement,
        group: RankGroup,
        store: TCPStore,
        environment: Mapping[str, str],
        timeout_seconds: float,
    ) -> RemoteRanks:
        """Start the ranks of a group on their hosts; return when all have a connection to this process."""
        on = placement.servers_on if group.role == "server" else placement.ranks_on
        hosts = on[group.first : group.first + group.count]
        with self._lock:
            self._started += 1
            number = self._started
            remote = self._groups[number] = RemoteRanks(self, number, hosts)
            channels = [self._channels.setdefault((number, rank), Future()) for rank in range(group.count)]
        for host in self.hosts.hosts:
            if host.number in hosts:
                ranks = tuple(rank for rank, rank_host in enumerate(hosts) if rank_host == host.number)
                slots = tuple(on[: group.first + rank].count(host.number) for rank in ranks)
                interface = host.interface if len(self.hosts.hosts) > 1 else "lo"
                on_host = RanksOnHost(host.number, ranks, slots, on.count(host.number), interface, self.port)
                order = GroupOrder(number, placement, group, on_host, (self.address, store.port), environment)
                self.send(host.number, "start", order)
        deadline = time.monotonic() + timeout_seconds
        for rank, channel in enumerate(channels):
            while not channel.done():
                if remote.join(0.02) or time.monotonic() > deadline:
                    remote.kill()
                    reasons = [reason for reason in remote.exits().values() if isinstance(reason, str)]
                    raise RunFailed(reasons[0] if reasons else f"{group.process_name(rank)} did not start")
            remote.channels.append(channel.result())
        return remote

    def send(self, host: int, *message: object) -> None:
        with self._lock, suppress(OSError, KeyError):
            self._agents[host].send_bytes(pickle.dumps(message))

    def close(self, code: int) -> None:
        """End the agents of all hosts with an exit code."""
        self._closing = True
        for number in self._agents:
            self.send(number, "end", code)
        self._listener.close()

    def _on_connection(self, hello: tuple[object, ...], connection: Connection) -> None:
        kind, number, *rest = hello
        assert isinstance(number, int)
        if kind == "host":
            with self._lock:
                self._agents[number] = connection
            Thread(target=self._listen, args=(number, connection), name=f"host-{number}", daemon=True).start()
            self._joined[number].set()
            return
        rank = rest[0]
        assert isinstance(rank, int)
        with self._lock:
            channel = self._channels.get((number, rank))
        if channel is None or channel.done():
            connection.close()
            return
        channel.set_result(connection)

    def _listen(self, host: int, connection: Connection) -> None:
        """Receive the messages of an agent until its host is lost."""
        try:
            while True:
                kind, number, value = pickle.loads(connection.recv_bytes())
                remote = self._groups[number]
                if kind == "ended":
                    remote.host_ended(host, value)
                else:
                    remote.host_ended(host, {}, f"{self.hosts.name_of(host)}: {value}")
        except (EOFError, OSError) as error:
            if not self._closing:
                self._lose(host, f"the connection to {self.hosts.name_of(host)} broke" + _cause(error))

    def _lose(self, host: int, reason: str) -> None:
        self.hosts.lost[host] = reason
        with self._lock:
            self._agents.pop(host, None)
            groups = list(self._groups.values())
        for remote in groups:
            remote.host_lost(host, reason)


def _cause(error: Exception) -> str:
    return f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""


def with_host_names(group: RankGroup, placement: Placement, hosts: RealHosts) -> RankGroup:
    """Return the group with the names of its hosts, which messages then contain."""
    on = placement.servers_on if group.role == "server" else placement.ranks_on
    return replace(group, hosts=tuple(hosts.name_of(on[group.first + rank]) for rank in range(group.count)))
