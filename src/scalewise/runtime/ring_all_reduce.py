"""Ring all-reduce between connections, over TCP or over NCCL."""
# No `from __future__ import annotations` here: DDP compares the annotations of a communication hook with classes.

import fcntl
import os
import secrets
import select
import socket
import struct
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, zip_longest
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.core.errors import RunFailed, UserError
from scalewise.hardware.collectives import MIB, PIECE_MB, Schedule, schedule_of
from scalewise.runtime.exchange import all_gather_values

_ADDRESS_OF_INTERFACE = 0x8915
"""Linux ioctl SIOCGIFADDR."""
_PASSWORD_BYTES = 16
_MOST_STRANGERS = 256
"""Number of connections that may owe their password at the same time."""
_WAKE_UP_BYTES = 512 * 1024
"""Number of received bytes after which the kernel wakes a waiting rank, instead of after each 64 KB of the sender. Four
ranks on two cores then need a fifth less time for 4 MB. Not used between hosts, whose links are slower than their
cores."""


@dataclass(frozen=True)
class _Endpoint:
    """Address at which a rank listens, and the password that a connecting rank must send first."""

    machine: str
    address: str
    port: int
    password: bytes


class RingConnections:
    """Two TCP connections, to the next and the previous rank of a ring, used without a separate thread.

    Ranks listen on the interface that gloo uses, and only until the previous rank has connected.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        address = own_address()
        with socket.create_server((address, 0)) as listener:
            listener.settimeout(timeout_seconds)
            port = listener.getsockname()[1]
            own_endpoint = _Endpoint(socket.gethostname(), address, port, secrets.token_bytes(_PASSWORD_BYTES))
            endpoints: list[_Endpoint] = all_gather_values(own_endpoint, group)
            _refuse_unreachable(endpoints)
            next_endpoint = endpoints[(self.rank + 1) % self.ranks]
            self.next = socket.create_connection((next_endpoint.address, next_endpoint.port), timeout_seconds)
            self.next.sendall(next_endpoint.password)
            self.previous = _accept(listener, own_endpoint.password, monotonic() + timeout_seconds)
        for connection in (self.next, self.previous):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
        self._incoming, self._both = select.poll(), select.poll()
        for poll in (self._incoming, self._both):
            poll.register(self.previous, select.POLLIN)
        self._both.register(self.next, select.POLLOUT)
        self._outgoing = select.poll()
        self._outgoing.register(self.next, select.POLLOUT)
        self._wake_up_bytes = _WAKE_UP_BYTES if address.startswith("127.") else 1
        self._low_watermark_bytes = 1
        self.close = weakref.finalize(self, _close, self.next, self.previous)

    def send(self, data: memoryview) -> int:
        """Send as many bytes as the kernel accepts now; return their number."""
        try:
            return self.next.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise self._lost(1) from error

    def receive(self, into: memoryview) -> int:
        """Receive the bytes that have arrived; return their number."""
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
        """Wait until all missing bytes, or enough of them, have arrived; or until more can be sent."""
        wanted_bytes = min(missing_bytes, self._wake_up_bytes)
        if wanted_bytes != self._low_watermark_bytes:
            self._low_watermark_bytes = wanted_bytes
            self.previous.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)
        self._wait(self._both if or_to_send else self._incoming, -1)

    def wait_to_send(self) -> None:
        self._wait(self._outgoing, 1)

    def _wait(self, poll: select.poll, offset: int) -> None:
        if not poll.poll(self.timeout_seconds * 1e3):
            other = (self.rank + offset) % self.ranks
            raise RuntimeError(f"scalewise ring timed out: nothing from rank {other} in {self.timeout_seconds:g} s")

    def _lost(self, offset: int) -> RuntimeError:
        return RuntimeError(f"scalewise ring: connection closed by rank {(self.rank + offset) % self.ranks}")


def own_address() -> str:
    """Return the address of gloo's interface: GLOO_SOCKET_IFNAME if set, else that of the machine's host name."""
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
                f"GLOO_SOCKET_IFNAME is '{interface}', but '{first}' has no IPv4 address ({error.strerror}); set it to "
                "an interface that `ip -4 address` lists"
            ) from error
        return socket.inet_ntoa(answer[20:24])
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _refuse_unreachable(endpoints: list[_Endpoint]) -> None:
    several_hosts = len({endpoint.machine for endpoint in endpoints}) > 1
    loopback = [endpoint for endpoint in endpoints if endpoint.address.startswith("127.")]
    if several_hosts and loopback:
        raise RunFailed(
            f"host {loopback[0].machine} has the address {loopback[0].address}, which other hosts cannot reach; set "
            "GLOO_SOCKET_IFNAME on that host to an interface that they can reach, for example eth0"
        )


def _accept(listener: socket.socket, password: bytes, until: float) -> socket.socket:
    """Accept the first connection with the right password; close others.

    Passwords of all connections are read at the same time, so that silent strangers delay nobody.
    """
    received: dict[socket.socket, bytes] = {}
    listener.setblocking(False)
    try:
        while True:
            if not (ready := _readable([listener, *received], until - monotonic())):
                raise RuntimeError("scalewise ring timed out: the previous rank did not connect")
            for connection in ready:
                if connection is listener:
                    _take_in(listener, received)
                elif connection in received and _has_password(connection, received, password):
                    del received[connection]
                    return connection
    finally:
        _close(*received)


def _readable(sockets: list[socket.socket], seconds: float) -> list[socket.socket]:
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(max(0.0, seconds) * 1e3)]


def _take_in(listener: socket.socket, received: dict[socket.socket, bytes]) -> None:
    """Accept a connection; close the oldest one without a password if there are too many."""
    try:
        connection, _ = listener.accept()
    except OSError:  # it was closed meanwhile
        return
    connection.setblocking(False)
    received[connection] = b""
    if len(received) > _MOST_STRANGERS:
        oldest = next(iter(received))
        del received[oldest]
        oldest.close()


def _has_password(connection: socket.socket, received: dict[socket.socket, bytes], password: bytes) -> bool:
    """Read more of the password; close the connection if it is wrong."""
    try:
        more = connection.recv(len(password) - len(received[connection]))
    except OSError:
        more = b""
    received[connection] += more
    if more and len(received[connection]) < len(password):
        return False
    if secrets.compare_digest(received[connection], password):
        return True
    del received[connection]
    connection.close()
    return False


def _close(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()


# No `from __future__ import annotations` here: DDP compares the annotations of a communication hook with classes.


class SocketRing:
    """Ring all-reduce over TCP: sums a flat tensor in host memory over the ranks, in place.

    One loop sends pieces that are ready, receives pieces and adds them, and waits only when none of these is possible:

        receive   a b c d
        add        a b c d
        send        a b c d

    Each operation of gloo wakes gloo's thread and then the waiting thread, which takes longer than the transfer when
    ranks share cores.
    """

    def __init__(self, connections: RingConnections, piece_bytes: int) -> None:
        self._connections = connections
        self._piece_bytes = piece_bytes
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def __call__(self, flat: Tensor) -> None:
        connections = self._connections
        size = flat.element_size()
        schedule = schedule_of(connections.ranks, connections.rank, flat.numel(), size, self._piece_bytes)
        pieces = flat.split_with_sizes(schedule.sizes)
        arriving = [pieces[piece] for step in schedule.received for piece in step]
        added_count = sum(map(len, schedule.received[: connections.ranks - 1]))
        # A piece received in one step is sent in the next.
        sender = _Sender(
            connections, [pieces[piece] for step in schedule.sent for piece in step], len(schedule.sent[0])
        )
        if len(self._buffer) < max(schedule.sizes) * size:
            self._buffer = torch.empty(max(schedule.sizes) * size, dtype=torch.uint8)
        for number, piece in enumerate(arriving):
            if number < added_count:
                buffer = self._buffer[: piece.numel() * size].view(flat.dtype)
                self._receive(buffer, sender)
                piece.add_(buffer)
            else:
                self._receive(piece, sender)
            sender.ready += 1
        while not sender.send():
            connections.wait_to_send()

    def _receive(self, into: Tensor, sender: "_Sender") -> None:
        """Receive a whole piece, and send pieces that are ready while waiting."""
        connections, data = self._connections, _bytes_of(into)
        while data:
            all_sent = sender.send()
            if received := connections.receive(data):
                data = data[received:]
            else:
                connections.wait_to_receive(len(data), or_to_send=not all_sent)


class _Sender:
    """Sends pieces in order; the first `ready` of them may be sent."""

    def __init__(self, connections: RingConnections, pieces: list[Tensor], ready: int) -> None:
        self._connections, self._pieces = connections, pieces
        self.ready = ready
        self._started = 0
        self._rest = memoryview(b"")

    def send(self) -> bool:
        """Send ready pieces until the kernel's buffer is full; return whether all ready pieces are sent."""
        while self._rest or self._started < min(self.ready, len(self._pieces)):
            if not self._rest:
                self._rest = _bytes_of(self._pieces[self._started])
                self._started += 1
            sent = self._connections.send(self._rest)
            if not sent:
                return False
            self._rest = self._rest[sent:]
        return True


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]


_AHEAD = 2
"""Number of pieces of a chunk in transfer at a time, each with its own receive buffer."""


class PointToPointRing:
    """Ring all-reduce with point-to-point operations of NCCL: sums a flat tensor over the ranks, in place.

    While a piece is added, the previous piece, already summed, is sent and the next piece is received. The CUDA streams
    wait for transfers, not this process.
    """

    def __init__(self, group: dist.ProcessGroup, piece_bytes: int) -> None:
        self._group = group
        self._piece_bytes = piece_bytes
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._next, self._previous = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        self._buffers: dict[torch.dtype, tuple[Tensor, ...]] = {}

    def __call__(self, flat: Tensor) -> None:
        schedule = schedule_of(self._ranks, self._rank, flat.numel(), flat.element_size(), self._piece_bytes)
        exchanges = list(self._exchanges(flat, schedule))
        ahead = min(_AHEAD, schedule.window)
        for number, exchange in enumerate(exchanges):
            if number >= ahead:
                exchanges[number - ahead].finish()
            self._start(exchange)
        for exchange in exchanges[-ahead:]:
            exchange.finish()

    def _exchanges(self, flat: Tensor, schedule: Schedule) -> Iterator["_Exchange"]:
        """Yield all exchanges of the schedule; prepared before the first one starts, to save time between pieces."""
        pieces = flat.split_with_sizes(schedule.sizes)
        free = cycle(self._receive_buffers(flat, max(schedule.sizes)))
        for step, (sent, received) in enumerate(zip(schedule.sent, schedule.received, strict=True)):
            for sent_piece, received_piece in zip_longest(sent, received):
                exchange = _Exchange()
                if sent_piece is not None:
                    exchange.out = pieces[sent_piece]
                if received_piece is not None and step < self._ranks - 1:
                    exchange.into = next(free)[: schedule.sizes[received_piece]]
                    exchange.sum = pieces[received_piece], exchange.into
                elif received_piece is not None:
                    exchange.into = pieces[received_piece]
                yield exchange

    def _start(self, exchange: "_Exchange") -> None:
        """Start send and receive as one batch: separately, each send would wait for the peer's receive."""
        operations = []
        if exchange.out is not None:
            operations.append(dist.P2POp(dist.isend, exchange.out, group=self._group, group_peer=self._next))
        if exchange.into is not None:
            operations.append(dist.P2POp(dist.irecv, exchange.into, group=self._group, group_peer=self._previous))
        exchange.works = dist.batch_isend_irecv(operations)

    def _receive_buffers(self, flat: Tensor, elements: int) -> tuple[Tensor, ...]:
        """Return receive buffers, which are reused and have the largest size needed so far."""
        buffers = self._buffers.get(flat.dtype)
        if buffers is None or len(buffers[0]) < elements:
            buffers = self._buffers[flat.dtype] = flat.new_empty((_AHEAD, elements)).unbind()
        return buffers


@dataclass(slots=True)
class _Exchange:
    """Piece sent to the next rank and piece received from the previous rank at the same time; either may be None."""

    out: Tensor | None = None
    into: Tensor | None = None
    sum: tuple[Tensor, Tensor] | None = None
    """In the reduce-scatter: a piece and the received tensor to add to it."""
    works: Any = ()

    def finish(self) -> None:
        for work in self.works:
            work.wait()
        if self.sum is not None:
            piece, received = self.sum
            piece.add_(received)


class RingAllReduce:
    """Sums a flat tensor over the ranks of a group, in place: `ring(flat)`.

    All ranks must create it at the same time.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, piece_bytes: int = int(PIECE_MB * MIB)) -> None:
        process_group: dist.ProcessGroup = group or dist.group.WORLD  # type: ignore[assignment]
        self._ranks = dist.get_world_size(process_group)
        self._on_host = dist.get_backend(process_group) == "gloo"
        self._pinned: dict[torch.dtype, Tensor] = {}
        self._background = ThreadPoolExecutor(1, "scalewise-ring")
        self._stream: torch.cuda.Stream | None = None
        self._connections: RingConnections | None = None
        self._failed: Exception | None = None
        self._reduce: Callable[[Tensor], None]
        if self._on_host and self._ranks > 1:
            timeout = process_group._get_backend(torch.device("cpu")).options._timeout
            self._connections = RingConnections(process_group, timeout.total_seconds())
            self._reduce = SocketRing(self._connections, piece_bytes)
        else:
            self._reduce = PointToPointRing(process_group, piece_bytes)

    def __call__(self, flat: Tensor) -> None:
        """Sum `flat`; with NCCL, return when the work is queued on the stream, as NCCL's collectives do."""
        if flat.layout is not torch.strided:
            raise ValueError("the ring all-reduce does not support sparse gradients; use nn.Embedding(sparse=False)")
        if self._ranks == 1 or not flat.numel():
            return
        if not self._on_host or not flat.is_cuda:
            self._reduce(flat)
            return
        host = self._staging(flat)  # sockets cannot reach a GPU's memory
        host.copy_(flat)
        self._reduce(host)
        flat.copy_(host)

    def begin(self, flat: Tensor) -> Future[Tensor]:
        """Sum `flat` in the background, in order of the calls; `wait` of the future raises errors."""
        done: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)
        if self._ranks == 1:
            done.set_result(flat)
        elif flat.is_cuda:
            ready = torch.cuda.current_stream(flat.device).record_event()
            self._background.submit(self._finish_on_stream, flat, done, ready)
        else:
            self._background.submit(self._finish, flat, done)
        return done

    def close(self) -> None:
        """Stop the background thread and close the connections; the ring cannot be used afterwards."""
        self._background.shutdown()
        if self._connections is not None:
            self._connections.close()

    def _finish(self, flat: Tensor, done: Future[Tensor]) -> None:
        """Sum `flat` and complete the future; after a failure all later calls fail with the same error."""
        try:
            if self._failed is not None:
                raise self._failed
            self(flat)
            done.set_result(flat)
        except Exception as error:
            self._failed = error
            done.set_exception(error)  # type: ignore[arg-type]

    def _finish_on_stream(self, flat: Tensor, done: Future[Tensor], ready: torch.cuda.Event) -> None:
        """Sum on a separate stream, so that backward continues; readers of the future wait for this stream."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(flat.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            self._finish(flat, done)

    def _staging(self, flat: Tensor) -> Tensor:
        """Return a pinned host buffer, which is reused because pinned memory is slow to allocate."""
        buffer = self._pinned.get(flat.dtype)
        if buffer is None or len(buffer) < len(flat):
            buffer = self._pinned[flat.dtype] = torch.empty(len(flat), dtype=flat.dtype, pin_memory=True)
        return buffer[: len(flat)]


def ring_hook(state: RingAllReduce, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Sum gradients in DDP without averaging: `ddp.register_comm_hook(RingAllReduce(), ring_hook)`."""
    return state.begin(bucket.buffer())
