"""The ring all-reduce running for real, between neighbours, by c10d's point-to-point operations."""
# No postponed annotations here: DDP compares those of a communication hook with the classes themselves.

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.collectives.ring import MIB, PIECE_MB, piece_sizes, received_pieces, sent_pieces

_REDUCE, _GATHER = 0, 1
"""Tags. Messages of one tag arrive in the order they were sent, also from one call to the next."""

_GLOO_AHEAD = 4
_NCCL_AHEAD = 2


class RingAllReduce:
    """Sums a flat tensor over the ranks of a group, in place: `ring(flat)`.

    Pieces are received ahead of the one being added, and a sum leaves as soon as it is there:

        receive   a b c d . . .
        add         a b c d . .
        send          a b c d .
    """

    def __init__(self, group: dist.ProcessGroup | None = None, piece_bytes: int = int(PIECE_MB * MIB)) -> None:
        self._group = dist.group.WORLD if group is None else group
        self._piece_bytes = piece_bytes
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._next, self._previous = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        self._gloo = dist.get_backend(group) == "gloo"
        self._kept: dict[str, Tensor] = {}
        self._background = ThreadPoolExecutor(1, "scalewise-ring")
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, flat: Tensor) -> None:
        """Returns when `flat` holds the sum; on NCCL, as its collectives do, when that is queued on the stream."""
        if self._ranks == 1:
            return
        if not self._gloo:
            self._by_pairs(flat)
        elif flat.is_cuda:
            # gloo cannot read GPU memory.
            host = self._buffer("host", flat.numel(), torch.empty(0, dtype=flat.dtype, pin_memory=True))
            host.copy_(flat)
            self._by_messages(host)
            flat.copy_(host)
        else:
            self._by_messages(flat)

    def begin(self, flat: Tensor) -> Future[Tensor]:
        """The same in the background, one after the other; what goes wrong there is raised by the future's `wait`."""
        if not flat.is_cuda:
            done: Future[Tensor] = Future()
            self._background.submit(self._finish, flat, done)
            return done
        done = Future(devices=[flat.device])
        ready = torch.cuda.current_stream(flat.device).record_event()
        self._background.submit(self._finish_on_stream, flat, done, ready)
        return done

    def _finish(self, flat: Tensor, done: Future[Tensor]) -> None:
        try:
            self(flat)
            done.set_result(flat)
        except Exception as error:
            done.set_exception(error)

    def _finish_on_stream(self, flat: Tensor, done: Future[Tensor], ready: torch.cuda.Event) -> None:
        """On a stream of the ring's own, so that backward's goes on; the future makes its readers wait for this one."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(flat.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            self._finish(flat, done)

    def _by_messages(self, flat: Tensor) -> None:
        """For gloo. Its sockets are read, and mostly written, by a thread that shares this one's core.

        What counts is how seldom the two have to wake each other. So the all-gather's receives are all posted at the
        start: nothing can arrive in a piece before its sum is complete, that is, after it was last sent from here. And
        sends go before receives: a message written by this thread, because its receiver waits already, locks the other out.
        """
        send, receive = self._group.send, self._group.recv
        sizes = piece_sizes(self._ranks, flat.numel(), flat.element_size(), self._piece_bytes)
        pieces = flat.split_with_sizes(sizes)
        steps = received_pieces(self._ranks, self._rank, sizes)
        reduced, gathered = steps[: self._ranks - 1], steps[self._ranks - 1 :]
        added = [(pieces[piece], landing) for piece, landing in self._landings(sum(reduced, []), sizes, _GLOO_AHEAD, flat)]
        sent = [send([pieces[piece]], self._next, _REDUCE) for piece in sent_pieces(self._ranks, self._rank, sizes)[0]]
        arriving = deque(receive([landing], self._previous, _REDUCE) for _, landing in added[:_GLOO_AHEAD])
        gathering = [receive([pieces[piece]], self._previous, _GATHER) for step in gathered for piece in step]
        partial = len(added) - len(reduced[-1])
        for number, (piece, landing) in enumerate(added):
            arriving.popleft().wait()
            piece.add_(landing)
            sent.append(send([piece], self._next, _REDUCE if number < partial else _GATHER))
            if number + _GLOO_AHEAD < len(added):
                arriving.append(receive([added[number + _GLOO_AHEAD][1]], self._previous, _REDUCE))
        passed_on = [pieces[piece] for step in gathered[:-1] for piece in step]
        for work, piece in zip_longest(gathering, passed_on):
            work.wait()
            if piece is not None:
                sent.append(send([piece], self._next, _GATHER))
        for work in sent:
            work.wait()
