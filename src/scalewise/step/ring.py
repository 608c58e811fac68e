"""The ring all-reduce running for real: c10d's point-to-point operations between neighbours."""
# Annotations are not postponed here: DDP compares those of a communication hook with the classes themselves.

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.collectives.ring import MIB, PIECE_MB, Schedule, schedule_of

_AHEAD = 2
"""Pieces of a chunk under way at a time, each with memory of its own to arrive in."""
_TAG = 0
"""Messages of one tag arrive in the order they were sent, from one call to the next too: pieces cannot be mixed up."""


class RingAllReduce:
    """Sums a flat tensor over the ranks of a group, in place: `ring(flat)`.

    While a piece is added, the one before it, now a sum, is sent and the one after it received:

        receive   a b c d
        add         a b c d
        send          a b c d
    """

    def __init__(self, group: dist.ProcessGroup | None = None, piece_bytes: int = int(PIECE_MB * MIB)) -> None:
        self._group: dist.ProcessGroup = group or dist.group.WORLD  # type: ignore[assignment]
        self._piece_bytes = piece_bytes
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._next, self._previous = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        self._gloo: Any = None
        if dist.get_backend(group) == "gloo":
            # Straight to gloo: dist.isend and the dispatcher add half as much again to the cost of a call.
            self._gloo = self._group._get_backend(torch.device("cpu"))
        self._landings: dict[tuple[torch.dtype, int], tuple[Tensor, ...]] = {}
        self._pinned: dict[torch.dtype, Tensor] = {}
        self._background = ThreadPoolExecutor(1, "scalewise-ring")
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, flat: Tensor) -> None:
        """Returns when `flat` holds the sum or, as NCCL's own collectives do, when the stream will see to it."""
        if self._ranks == 1 or not flat.numel():
            return
        if self._gloo is None or not flat.is_cuda:
            self._all_reduce(flat)
            return
        host = self._staging(flat)  # gloo's sockets cannot reach a GPU's memory
        host.copy_(flat)
        self._all_reduce(host)
        flat.copy_(host)

    def begin(self, flat: Tensor) -> Future[Tensor]:
        """The same in the background, one after the other; what goes wrong there is raised by the future's `wait`."""
        done: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)
        if self._ranks == 1:
            done.set_result(flat)
        elif flat.is_cuda:
            ready = torch.cuda.current_stream(flat.device).record_event()
            self._background.submit(self._finish_on_stream, flat, done, ready)
        else:
            self._background.submit(self._finish, flat, done)
        return done

    def _finish(self, flat: Tensor, done: Future[Tensor]) -> None:
        try:
            self(flat)
            done.set_result(flat)
        except Exception as error:
            done.set_exception(error)  # type: ignore[arg-type]

    def _finish_on_stream(self, flat: Tensor, done: Future[Tensor], ready: torch.cuda.Event) -> None:
        """On a stream of its own, so that backward's goes on; the future has its readers' streams wait for this one."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(flat.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            self._finish(flat, done)

    def _all_reduce(self, flat: Tensor) -> None:
        schedule = schedule_of(self._ranks, self._rank, flat.numel(), flat.element_size(), self._piece_bytes)
        # Where a chunk is one piece, every step waits for the one before: then it counts that all receives are posted
        # before, because a peer that knows of a receive sends at once, and one that does not has to be woken to ask.
        # Between two ranks there are but two steps, and the notice of the second disturbs the first.
        chain = schedule.window == 1 and self._ranks > 2
        summed = sum(map(len, schedule.received[: self._ranks - 1]))
        exchanges = list(self._exchanges(flat, schedule, max(1, summed) if chain else _AHEAD))
        if chain:
            for exchange in exchanges:
                self._post_receive(exchange)
        ahead = min(_AHEAD, schedule.window)
        for number, exchange in enumerate(exchanges):
            if number >= ahead:
                exchanges[number - ahead].finish()
            self._start(exchange)
        for exchange in exchanges[-ahead:]:
            exchange.finish()
        for exchange in exchanges:
            exchange.finish_sending()

    def _post_receive(self, exchange: "_Exchange") -> None:
        if self._gloo is not None and exchange.into is not None and not exchange.receiving:
            exchange.receiving = [self._gloo.recv([exchange.into], self._previous, _TAG)]

    def _exchanges(self, flat: Tensor, schedule: Schedule, landings: int) -> Iterator["_Exchange"]:
        """All of them, before any: between two pieces there is no time to lose."""
        pieces = flat.split_with_sizes(schedule.sizes)
        free = cycle(self._landings_for(flat, landings, max(schedule.sizes)))
        for step, (sent, received) in enumerate(zip(schedule.sent, schedule.received, strict=True)):
            for leaving, arriving in zip_longest(sent, received):
                exchange = _Exchange()
                if leaving is not None:
                    exchange.out = pieces[leaving]
                if arriving is not None and step < self._ranks - 1:
                    exchange.into = next(free)[: schedule.sizes[arriving]]
                    exchange.sum = pieces[arriving], exchange.into
                elif arriving is not None:
                    exchange.into = pieces[arriving]
                yield exchange

    def _start(self, exchange: "_Exchange") -> None:
        """On NCCL as one operation: alone, a send would wait for the peer's receive, and that for the peer's send.

        On gloo the receive goes first: it sends the peer a notice, which would else queue behind the piece, and on a
        slow link the peer would have to wait for it with nothing to send.
        """
        if self._gloo is not None:
            self._post_receive(exchange)
            if exchange.out is not None:
                exchange.sending = [self._gloo.send([exchange.out], self._next, _TAG)]
            return
        operations = []
        if exchange.out is not None:
            operations.append(dist.P2POp(dist.isend, exchange.out, group=self._group, group_peer=self._next))
        if exchange.into is not None:
            operations.append(dist.P2POp(dist.irecv, exchange.into, group=self._group, group_peer=self._previous))
        exchange.receiving = dist.batch_isend_irecv(operations)

    def _landings_for(self, flat: Tensor, count: int, elements: int) -> tuple[Tensor, ...]:
        """Kept from call to call, the largest that were needed."""
        kept = self._landings.get((flat.dtype, count))
        if kept is None or len(kept[0]) < elements:
            kept = self._landings[flat.dtype, count] = flat.new_empty((count, elements)).unbind()
        return kept

    def _staging(self, flat: Tensor) -> Tensor:
        """Kept too, because pinned memory is slow to get."""
        kept = self._pinned.get(flat.dtype)
        if kept is None or len(kept) < len(flat):
            kept = self._pinned[flat.dtype] = torch.empty(len(flat), dtype=flat.dtype, pin_memory=True)
        return kept[: len(flat)]


@dataclass(slots=True)
class _Exchange:
    """A piece sent to the next rank while one is received from the previous one; either may be missing.

    Its works live as long as it does: gloo's thread may still hold a finished one, and who drops it then waits for it.
    """

    out: Tensor | None = None
    into: Tensor | None = None
    sum: tuple[Tensor, Tensor] | None = None
    """In the reduce-scatter: a piece, and what is added to it once it is here."""
    receiving: Any = ()
    sending: Any = ()

    def finish(self) -> None:
        for work in self.receiving:
            work.wait()
        if self.sum is not None:
            piece, arrived = self.sum
            piece.add_(arrived)

    def finish_sending(self) -> None:
        for work in self.sending:
            work.wait()


def ring_hook(state: RingAllReduce, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """For DDP: `ddp.register_comm_hook(RingAllReduce(), ring_hook)`. The gradients' sum, which is not divided by N."""
    return state.begin(bucket.buffer())
