"""A rank's own connections to the next rank of a ring and from the previous one."""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import socket
import struct
import weakref
from dataclasses import dataclass
from time import monotonic

import torch.distributed as dist

from scalewise.errors import RunFailed, UserError

_ADDRESS_OF_INTERFACE = 0x8915
"""Linux's SIOCGIFADDR."""
_PASSWORD_BYTES = 16
_FIRST_WORDS_SECONDS = 5.0
_WORTH_WAKING_BYTES = 512 * 1024
"""The kernel wakes who waits for so many, not for each of the 64 KB that the sender's side hands over: four ranks on
two cores need a fifth less time for 4 MB. Not between hosts, whose links are slower than their cores."""


@dataclass(frozen=True)
class _Invitation:
    """Where a rank listens, and what who connects has to say first."""

    machine: str
    address: str
    port: int
    password: bytes


class Neighbours:
    """Two TCP connections, round the ring: no thread stands between who reduces and the kernel.

    They listen where gloo does, and only until the neighbour has come.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        address = own_address()
        with socket.create_server((address, 0)) as listening:
            listening.settimeout(timeout_seconds)
            port = listening.getsockname()[1]
            mine = _Invitation(socket.gethostname(), address, port, secrets.token_bytes(_PASSWORD_BYTES))
            invitations: list[_Invitation] = [mine] * self.ranks
            dist.all_gather_object(invitations, mine, group=group)
            _refuse_unreachable(invitations)
            following = invitations[(self.rank + 1) % self.ranks]
            self.next = socket.create_connection((following.address, following.port), timeout_seconds)
            self.next.sendall(following.password)
            self.previous = _admitted(listening, mine.password, monotonic() + timeout_seconds)
        for connection in (self.next, self.previous):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
        self._incoming, self._both = select.poll(), select.poll()
        for poll in (self._incoming, self._both):
            poll.register(self.previous, select.POLLIN)
        self._both.register(self.next, select.POLLOUT)
        self._outgoing = select.poll()
        self._outgoing.register(self.next, select.POLLOUT)
        self._worth_waking_bytes = _WORTH_WAKING_BYTES if address.startswith("127.") else 1
        self._woken_by_bytes = 1
        self.close = weakref.finalize(self, _close, self.next, self.previous)

    def send(self, data: memoryview) -> int:
        """As much as the kernel takes now."""
        try:
            return self.next.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise self._lost(1) from error

    def receive(self, into: memoryview) -> int:
        """As much as has come by now."""
        try:
            received = self.previous.recv_into(into)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise self._lost(-1) from error
        if not received:
            raise self._lost(-1)
        return received

    def wait_to_receive(self, missing_bytes: int, *, or_to_send: bool) -> None:
        """Until all that is missing, or a good part of it, has come; or until more can be sent."""
        enough = min(missing_bytes, self._worth_waking_bytes)
        if enough != self._woken_by_bytes:
            self._woken_by_bytes = enough
            self.previous.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
        self._wait(self._both if or_to_send else self._incoming, -1)

    def wait_to_send(self) -> None:
        self._wait(self._outgoing, 1)

    def _wait(self, poll: select.poll, towards: int) -> None:
        if not poll.poll(self.timeout_seconds * 1e3):
            other = (self.rank + towards) % self.ranks
            raise RuntimeError(f"scalewise ring timed out: nothing from rank {other} in {self.timeout_seconds:g} s")

    def _lost(self, towards: int) -> RuntimeError:
        return RuntimeError(f"scalewise ring: connection closed by rank {(self.rank + towards) % self.ranks}")


def own_address() -> str:
    """Of the interface that gloo was told to use; else, as gloo finds it, what this machine's name stands for."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface == "lo":
        return "127.0.0.1"
    if interface:
        first, *_ = interface.split(",")
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                answer = fcntl.ioctl(probe, _ADDRESS_OF_INTERFACE, struct.pack("256s", first.encode()[:15]))
        except OSError as error:
            raise UserError(
                f"GLOO_SOCKET_IFNAME is '{interface}', and '{first}' has no IPv4 address ({error.strerror}); name an "
                "interface that `ip -4 address` shows"
            ) from error
        return socket.inet_ntoa(answer[20:24])
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _refuse_unreachable(invitations: list[_Invitation]) -> None:
    several = len({invitation.machine for invitation in invitations}) > 1
    hidden = [invitation for invitation in invitations if invitation.address.startswith("127.")]
    if several and hidden:
        raise RunFailed(
            f"host {hidden[0].machine} gives its address as {hidden[0].address}, which other hosts cannot reach; set "
            "GLOO_SOCKET_IFNAME on it to the interface that they are on, for example eth0"
        )


def _admitted(listening: socket.socket, password: bytes, until: float) -> socket.socket:
    """The first who knows the password; others are turned away."""
    while True:
        listening.settimeout(max(0.001, until - monotonic()))
        try:
            connection, _ = listening.accept()
        except TimeoutError as error:
            raise RuntimeError("scalewise ring timed out: the previous rank did not connect") from error
        if secrets.compare_digest(_first_words(connection, len(password)), password):
            return connection
        connection.close()


def _first_words(connection: socket.socket, length: int) -> bytes:
    """What a neighbour says at once; a stranger who is silent does not keep others waiting for long."""
    connection.settimeout(_FIRST_WORDS_SECONDS)
    said = b""
    try:
        while len(said) < length and (more := connection.recv(length - len(said))):
            said += more
    except OSError:
        return b""
    return said


def _close(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()
