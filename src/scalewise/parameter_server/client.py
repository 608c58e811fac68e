"""Worker's side of parameter servers: push gradients and pull weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Literal
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from scalewise.core.errors import PeerSilent
from scalewise.models.parameters import flatten_parameters, trainable, views_of
from scalewise.runtime import byte_counters, torch_errors
from scalewise.runtime.process_settings import let_senders_finish
from scalewise.strategies.server_plan import Piece, pieces_of

FIRST_STEP = "first step"
"""Store key of the step from which the run continues, written by server 0."""
_END = "end"
_PATIENCE = timedelta(hours=1)


def announce(store: Store, worker: int | str) -> int:
    """Add a worker to the list of all workers that ever joined and return its position.

    A worker that replaces another has its own position.
    """
    entry = f"{worker}/{uuid4().hex}"
    place = 0
    # Atomic: a worker that died between reserving a position and writing its entry would block all others.
    while store.compare_set(f"joined/{place}", "", entry).decode() != entry:
        place += 1
    return place


def announce_end(store: Store) -> None:
    """Announce that no further worker joins, so that servers can finish."""
    announce(store, _END)


def arrivals(store: Store) -> Iterator[tuple[int, int]]:
    """Yield (position, worker) of every worker that joins, until the end is announced."""
    store = store.clone()  # type: ignore[attr-defined] # waiting blocks a store client
    place = 0
    while (worker := _wait_for(store, f"joined/{place}").partition("/")[0]) != _END:
        yield place, int(worker)
        place += 1


def _wait_for(store: Store, key: str) -> str:
    while True:
        try:
            store.wait([key], _PATIENCE)
        except dist.DistStoreError:
            continue
        return store.get(key).decode()


HEADER_TAG = 0
SERVER_WAIT_SECONDS = 24 * 3600.0
"""Seconds that a server waits for a worker: practically forever, because the launcher detects workers that hang."""
CONNECT_SECONDS = 600.0
"""Seconds in which an announced worker must connect; otherwise it has died."""


class ConnectionLost(Exception):
    """The process at the other end of a connection is gone."""


@contextmanager
def connection_errors() -> Iterator[None]:
    """Convert gloo's plain RuntimeErrors to ConnectionLost; the block must contain nothing but communication."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionLost(str(error)) from error


class ServerConnection:
    """Connection between one worker and one server; messages with the same tag arrive in the order they were sent.

    Each direction has its own process group, and so its own gloo thread, so that receiving never waits for sending.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        end: Literal["worker", "server"],
        timeout_seconds: float,
        connect_seconds: float | None = None,
    ) -> None:
        """`connect_seconds`: how long to wait for the other end to connect; defaults to `timeout_seconds`."""
        self._peer = 0 if end == "server" else 1

        def group(direction: str) -> Any:
            # A separate store client: waiting for a worker that has died would block all other threads.
            place = PrefixStore(f"line/{name}/{direction}", store.clone())  # type: ignore[attr-defined]
            process_group = dist.ProcessGroupGloo(
                place, 1 - self._peer, 2, timedelta(seconds=connect_seconds or timeout_seconds)
            )
            process_group._set_default_timeout(timedelta(seconds=timeout_seconds))
            return process_group

        pushes, pulls = group("push"), group("pull")
        self._outgoing, self._incoming = (pushes, pulls) if end == "worker" else (pulls, pushes)
        let_senders_finish()

    def send(self, tensor: Tensor, tag: int = HEADER_TAG) -> Any:
        """Start to send; wait on the returned work, and keep it until the other end has received the tensor."""
        return self._outgoing.send([tensor], self._peer, tag)

    def receive(self, tensor: Tensor, tag: int = HEADER_TAG) -> Any:
        """Start to receive into the tensor; wait on the returned work."""
        return self._incoming.recv([tensor], self._peer, tag)


def push_tag(piece: int) -> int:
    return 1 + 2 * piece


def pull_tag(piece: int) -> int:
    return 2 + 2 * piece


GOODBYE = -1
"""Sent instead of a number of samples when this worker leaves."""


class Client:
    """Pushes gradients and pulls weights: per step `begin`, backward, `finish_pushes` and `finish_pulls`.

    On a CPU a piece is sent during backward, as soon as all of its gradients are complete. On a GPU backward only
    queues work; pieces are copied to the host after it and sent in `finish_pushes` when their copy is complete.
    """

    def __init__(
        self,
        model: nn.Module,
        store: Store,
        worker: int,
        servers: int,
        piece_MB: float,
        timeout_seconds: float,
        *,
        whole_pushes: bool = False,
    ) -> None:
        """Connect to all servers and pull the first weights.

        `whole_pushes`: servers apply a push only after all of it has arrived. The number of samples is then sent after
        the gradients, because gloo reports a lost connection only for messages that have not begun.
        """
        self.parameters = trainable(model)
        self.weights = flatten_parameters(model)
        self.on_gpu = self.weights.is_cuda
        memory: dict[str, Any] = {"device": "cpu", "pin_memory": self.on_gpu}
        self.gradients = torch.empty_like(self.weights, **memory)
        self.arriving = torch.empty_like(self.weights, **memory)
        """Memory for new weights, separate because backward may still read the old ones (detached or tied weights).
        On a CPU it is swapped with `weights` when all pieces have arrived, on a GPU it is copied."""
        self.weight_views, self.arriving_views = (
            views_of(flat, self.parameters) for flat in (self.weights, self.arriving)
        )
        self.views = views_of(self.gradients, self.parameters)
        self.pieces = pieces_of(self.weights.numel(), self.weights.element_size(), servers, piece_MB)
        self.touched = _overlaps(self.parameters, self.pieces)
        self.addresses: dict[byte_counters.Address, int] = {}
        """Remote address of every connection -> number of the server."""
        self.store_port = _port_of(store)
        self.timeout_seconds = timeout_seconds
        place = announce(store, worker)
        self.connections = [
            self._open(store, f"{place}/{server}", server, timeout_seconds) for server in range(servers)
        ]
        self.whole_pushes = whole_pushes
        self.samples = 0
        self.acknowledged = 0
        """Number of pushes that were answered with new weights."""
        self.pushing = False
        """Whether the next backward pushes its gradients."""
        self.left: list[int] = []
        """For every piece, the number of parameters whose gradients it waits for."""
        self.awaited: set[int] = set()
        """Numbers of the parameters without a gradient in this step."""
        self.copied: list[tuple[int, torch.cuda.Event]] = []
        """Pieces that are being copied to the host, with the events that mark the end of the copies."""
        self.sending: list[tuple[int, Any]] = []
        """Messages being sent, with the numbers of their servers."""
        self.receiving: list[tuple[int, Any]] = []
        """Messages being received, with the numbers of their pieces."""
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))
            for number, parameter in enumerate(self.parameters)
        ]
        self._pull_first()

    def begin(self, samples: int) -> None:
        """Push the gradients of the next backward, as the mean over this number of samples."""
        self.pushing = True
        self.awaited = set(range(len(self.parameters)))
        self.left = [0] * len(self.pieces)
        for touched in self.touched:
            for piece in touched:
                self.left[piece] += 1
        self.samples = samples
        if not self.whole_pushes:
            self._send_samples(samples)

    def unreached(self) -> list[Tensor]:
        """Return parameters without a gradient; valid between backward and `finish_pushes`."""
        missing = (self.parameters[number] for number in sorted(self.awaited))
        return [parameter for parameter in missing if parameter.grad is None]

    def finish_pushes(self) -> None:
        """Send all remaining gradients and wait until they have been sent."""
        self._push_remaining()
        for piece, event in self.copied:
            event.synchronize()
            self.exchange(piece)
        self.copied.clear()
        if self.whole_pushes:
            self._send_samples(self.samples)
        self._wait_until_sent()
        self.pushing = False

    def finish_pulls(self) -> None:
        """Wait until the model has the new weights."""
        for piece, work in self.receiving:
            self._wait_for(self.pieces[piece].server, work)
            if self.on_gpu:
                elements = self._elements(piece)
                self.weights[elements].copy_(self.arriving[elements], non_blocking=True)
        if not self.on_gpu:
            self._swap_weights()
        self.receiving.clear()
        self.acknowledged += 1

    def _swap_weights(self) -> None:
        self.weights, self.arriving = self.arriving, self.weights
        self.weight_views, self.arriving_views = self.arriving_views, self.weight_views
        for parameter, view in zip(self.parameters, self.weight_views, strict=True):
            parameter.data = view

    def leave(self) -> None:
        """Tell the servers that no further push follows."""
        self._send_samples(GOODBYE)
        self._wait_until_sent()
        # The hooks are in a reference cycle through torch, invisible to Python, that would keep the connections open.
        for hook in self.hooks:
            hook.remove()

    def _open(self, store: Store, name: str, server: int, timeout_seconds: float) -> ServerConnection:
        before = byte_counters.snapshot().connections if byte_counters.available() else {}
        connection = ServerConnection(store, name, "worker", timeout_seconds)
        if byte_counters.available():
            self.addresses |= {peer: server for _, peer in byte_counters.snapshot().connections.keys() - before.keys()}
        return connection

    def _pull_first(self) -> None:
        for piece in range(len(self.pieces)):
            self.receiving.append(
                (piece, self._connection(piece).receive(self.arriving[self._elements(piece)], pull_tag(piece)))
            )
        self.finish_pulls()
        self.acknowledged = 0

    def _on_gradient(self, number: int, parameter: Tensor) -> None:
        if not self.pushing:  # an earlier micro-batch of an accumulated batch
            return
        self._copy_gradient(number, parameter)

    def _copy_gradient(self, number: int, parameter: Tensor) -> None:
        self.views[number].copy_(parameter.grad, non_blocking=True)  # type: ignore[arg-type]
        parameter.grad = None
        self._count_off(number)

    def _count_off(self, number: int) -> None:
        self.awaited.remove(number)
        for piece in reversed(self.touched[number]):  # servers wait for the last pieces first
            self.left[piece] -= 1
            if self.left[piece]:
                continue
            if self.on_gpu:
                self.copied.append((piece, torch.cuda.current_stream().record_event()))
            else:
                self.exchange(piece)

    def _push_remaining(self) -> None:
        """Push gradients that the last backward did not reach: from earlier micro-batches, or zeros."""
        for number in sorted(self.awaited, reverse=True):
            if self.parameters[number].grad is not None:
                self._copy_gradient(number, self.parameters[number])
            else:
                self.views[number].zero_()
                self._count_off(number)

    def exchange(self, piece: int) -> None:
        """Send the gradients of a piece and start to receive its new weights."""
        elements, connection = self._elements(piece), self._connection(piece)
        self.receiving.append((piece, connection.receive(self.arriving[elements], pull_tag(piece))))
        self.sending.append((self.pieces[piece].server, connection.send(self.gradients[elements], push_tag(piece))))

    def _send_samples(self, samples: int) -> None:
        self.sending += [
            (server, connection.send(torch.tensor([samples]))) for server, connection in enumerate(self.connections)
        ]

    def _wait_until_sent(self) -> None:
        for server, work in self.sending:
            self._wait_for(server, work)
        self.sending.clear()

    def _wait_for(self, server: int, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            if not torch_errors.mentions_timeout(error):
                raise
            raise PeerSilent(f"server {server} did not answer within {self.timeout_seconds:g} s") from error

    def _connection(self, piece: int) -> ServerConnection:
        return self.connections[self.pieces[piece].server]

    def _elements(self, piece: int) -> slice:
        return slice(self.pieces[piece].start, self.pieces[piece].stop)


def _overlaps(parameters: Sequence[Tensor], pieces: Sequence[Piece]) -> list[list[int]]:
    """Return for every parameter the numbers of the pieces that hold a part of it."""
    overlaps: list[list[int]] = []
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        overlaps.append([number for number, piece in enumerate(pieces) if piece.start < stop and start < piece.stop])
        start = stop
    return overlaps


def _port_of(store: Store) -> int:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    port: int = store.port  # type: ignore[attr-defined]
    return port
