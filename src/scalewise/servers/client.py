"""A worker's side of parameter servers: gradients leave piece by piece during backward, and come back as weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from scalewise.servers.line import Line, PeerSilent, pull_tag, push_tag
from scalewise.servers.meeting import announce
from scalewise.step.flat import flatten_parameters, trainable, views_of
from scalewise.strategies.pieces import Piece, pieces_of
from scalewise.tracing import sockets

GOODBYE = -1
"""In place of a number of samples: this worker is through."""


class Client:
    """`begin`, then backward, then `finish_pushes` and `finish_pulls`, once per step.

    On a CPU a piece leaves from inside backward, as soon as all its gradients are there. On a GPU backward only queues
    work, so pieces are copied to the host behind it and leave in `finish_pushes`, each when its copy is through.
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
        """`whole_pushes`: servers apply nothing before all of a push has come. The number of samples then follows the
        gradients: gloo never fails a message that was cut off by a death, but it does fail one that has not begun."""
        self.parameters = trainable(model)
        self.weights = flatten_parameters(model)
        self.on_gpu = self.weights.is_cuda
        memory: dict[str, Any] = {"device": "cpu", "pin_memory": self.on_gpu}
        self.gradients = torch.empty_like(self.weights, **memory)
        self.arriving = torch.empty_like(self.weights, **memory)
        """Not the weights themselves: what backward has yet to do may read those, detached or tied, untold. On a CPU
        the two change places when all has come, on a GPU it is copied."""
        self.held, self.coming = (views_of(flat, self.parameters) for flat in (self.weights, self.arriving))
        self.views = views_of(self.gradients, self.parameters)
        self.pieces = pieces_of(self.weights.numel(), self.weights.element_size(), servers, piece_MB)
        self.touched = _overlaps(self.parameters, self.pieces)
        self.addresses: dict[sockets.Address, int] = {}
        """Which server is behind which connection."""
        self.store_port = _port_of(store)
        self.timeout_seconds = timeout_seconds
        place = announce(store, worker)
        self.lines = [self._open(store, f"{place}/{server}", server, timeout_seconds) for server in range(servers)]
        self.whole_pushes = whole_pushes
        self.samples = 0
        self.acknowledged = 0
        """Pushes that came back as new weights."""
        self.armed = False
        self.left: list[int] = []
        """Of each piece, the parameters whose gradients it waits for."""
        self.awaited: set[int] = set()
        """Those parameters."""
        self.copied: list[tuple[int, torch.cuda.Event]] = []
        self.sending: list[tuple[int, Any]] = []
        """To which server."""
        self.receiving: list[tuple[int, Any]] = []
        """Which piece."""
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, number))
            for number, parameter in enumerate(self.parameters)
        ]
        self._pull_first()

    def begin(self, samples: int) -> None:
        """The next backward's gradients are to be pushed, as the mean over so many samples."""
        self.armed = True
        self.awaited = set(range(len(self.parameters)))
        self.left = [0] * len(self.pieces)
        for touched in self.touched:
            for piece in touched:
                self.left[piece] += 1
        self.samples = samples
        if not self.whole_pushes:
            self._tell(samples)

    def unreached(self) -> list[Tensor]:
        """Parameters that no part of the batch has given a gradient; asked between backward and `finish_pushes`."""
        waiting = (self.parameters[number] for number in sorted(self.awaited))
        return [parameter for parameter in waiting if parameter.grad is None]

    def finish_pushes(self) -> None:
        """Returns when all gradients have left."""
        self._push_the_rest()
        for piece, event in self.copied:
            event.synchronize()
            self.exchange(piece)
        self.copied.clear()
        if self.whole_pushes:
            self._tell(self.samples)
        self._wait_until_sent()
        self.armed = False

    def finish_pulls(self) -> None:
        """Returns when the model has the new weights."""
        for piece, work in self.receiving:
            self._wait_for(self.pieces[piece].server, work)
            if self.on_gpu:
                run = self._run(piece)
                self.weights[run].copy_(self.arriving[run], non_blocking=True)
        if not self.on_gpu:
            self._change_places()
        self.receiving.clear()
        self.acknowledged += 1

    def _change_places(self) -> None:
        self.weights, self.arriving = self.arriving, self.weights
        self.held, self.coming = self.coming, self.held
        for parameter, view in zip(self.parameters, self.held, strict=True):
            parameter.data = view

    def leave(self) -> None:
        self._tell(GOODBYE)
        self._wait_until_sent()
        for hook in self.hooks:  # a circle through torch that Python does not see: it would keep the lines for ever
            hook.remove()

    def _open(self, store: Store, name: str, server: int, timeout_seconds: float) -> Line:
        before = sockets.snapshot().connections if sockets.available() else {}
        line = Line(store, name, "worker", timeout_seconds)
        if sockets.available():
            self.addresses |= {peer: server for _, peer in sockets.snapshot().connections.keys() - before.keys()}
        return line

    def _pull_first(self) -> None:
        for piece in range(len(self.pieces)):
            self.receiving.append((piece, self._line(piece).receive(self.arriving[self._run(piece)], pull_tag(piece))))
        self.finish_pulls()
        self.acknowledged = 0

    def _ready(self, number: int, parameter: Tensor) -> None:
        if not self.armed:  # an earlier part of an accumulated batch
            return
        self._take(number, parameter)

    def _take(self, number: int, parameter: Tensor) -> None:
        self.views[number].copy_(parameter.grad, non_blocking=True)  # type: ignore[arg-type]
        parameter.grad = None
        self._count_off(number)

    def _count_off(self, number: int) -> None:
        self.awaited.remove(number)
        for piece in reversed(self.touched[number]):  # the order in which servers wait for them
            self.left[piece] -= 1
            if self.left[piece]:
                continue
            if self.on_gpu:
                self.copied.append((piece, torch.cuda.current_stream().record_event()))
            else:
                self.exchange(piece)

    def _push_the_rest(self) -> None:
        """What backward did not reach: an earlier part of the batch may have, else the gradient is zero."""
        for number in sorted(self.awaited, reverse=True):
            if self.parameters[number].grad is not None:
                self._take(number, self.parameters[number])
            else:
                self.views[number].zero_()
                self._count_off(number)

    def exchange(self, piece: int) -> None:
        run, line = self._run(piece), self._line(piece)
        self.receiving.append((piece, line.receive(self.arriving[run], pull_tag(piece))))
        self.sending.append((self.pieces[piece].server, line.send(self.gradients[run], push_tag(piece))))

    def _tell(self, samples: int) -> None:
        self.sending += [(server, line.send(torch.tensor([samples]))) for server, line in enumerate(self.lines)]

    def _wait_until_sent(self) -> None:
        for server, work in self.sending:
            self._wait_for(server, work)
        self.sending.clear()

    def _wait_for(self, server: int, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            if "timed out" not in str(error).lower():
                raise
            raise PeerSilent(f"server {server} did not answer within {self.timeout_seconds:g} s") from error

    def _line(self, piece: int) -> Line:
        return self.lines[self.pieces[piece].server]

    def _run(self, piece: int) -> slice:
        return slice(self.pieces[piece].start, self.pieces[piece].stop)


def _overlaps(parameters: Sequence[Tensor], pieces: Sequence[Piece]) -> list[list[int]]:
    """For each parameter, the pieces that hold a part of it."""
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
