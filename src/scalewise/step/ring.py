"""The ring all-reduce running for real: c10d's point-to-point operations between neighbours."""
# Annotations are not postponed here: DDP compares those of a communication hook with the classes themselves.

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, cycle, islice, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.collectives.ring import MIB, PIECE_MB, Schedule, schedule_of

_TAG = 0
"""Messages of one tag arrive in the order they were sent, from one call to the next too: pieces cannot be mixed up."""

_AHEAD = 2
"""Pieces on their way to being added at a time, each with memory of its own to arrive in."""


class RingAllReduce:
    """Sums a flat tensor over the ranks of a group, in place: `ring(flat)`.

    The next pieces are received while one is added, and a sum leaves as soon as it is there:

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
        self._kept: dict[torch.dtype, tuple[Tensor, ...]] = {}
        self._pinned: dict[torch.dtype, Tensor] = {}
        self._background = ThreadPoolExecutor(1, "scalewise-ring")
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, flat: Tensor) -> None:
        """Returns when `flat` holds the sum or, as NCCL's own collectives do, when the stream will see to it."""
        if self._ranks == 1 or not flat.numel():
            return
        if self._gloo is None:
            self._by_pairs(flat)
        elif flat.is_cuda:  # gloo's sockets cannot reach a GPU's memory
            host = self._staging(flat)
            host.copy_(flat)
            self._by_messages(host)
            flat.copy_(host)
        else:
            self._by_messages(flat)

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

    def _by_messages(self, flat: Tensor) -> None:
        """For gloo, whose sockets are served by a thread on this one's core: the two should seldom wait for each other.

        A message that its receiver waits for is written by this thread, while gloo's, woken by what arrives meanwhile,
        spins for the lock; one that has to wait is written by gloo's thread when the receiver is ready. So every rank
        sends before it receives. The receives of the all-gather, which need no memory, are posted in one go. And works
        are kept to the end: gloo's thread may still hold a finished one, and who drops it then waits for that thread.
        """
        schedule, pieces = self._cut(flat)
        reducing, gathering = schedule.received[: self._ranks - 1], schedule.received[self._ranks - 1 :]
        added, gathered, last = list(chain(*reducing)), list(chain(*gathering)), len(gathering[-1])
        landings = cycle(self._landings(flat, schedule))
        into = [next(landings)[: schedule.sizes[piece]] for piece in added]
        posting = (self._receive(memory) for memory in chain(into, (pieces[piece] for piece in gathered)))
        sent = [self._send(pieces[piece]) for piece in schedule.sent[0]]
        received = list(islice(posting, min(_AHEAD, len(added))))
        for number, piece in enumerate(added):
            received[number].wait()
            sent.append(self._send(pieces[piece].add_(into[number])))
            received += islice(posting, 1 if len(received) < len(added) else None)
        received += posting
        for number, piece in enumerate(gathered[: len(gathered) - last], start=len(added)):
            received[number].wait()
            sent.append(self._send(pieces[piece]))
        for work in chain(received[len(received) - last :], sent):
            work.wait()

    def _by_pairs(self, flat: Tensor) -> None:
        """For NCCL, where a send and a receive are launched as one: alone, each would wait for the peer's other."""
        schedule, pieces = self._cut(flat)
        landings = cycle(self._landings(flat, schedule))
        # What arrives in one step leaves in the next, and must have been added by then.
        ahead = min(_AHEAD, schedule.per_chunk)
        under_way: deque[_Pair] = deque()
        for step, number in product(range(len(schedule.sent)), range(schedule.per_chunk)):
            if len(under_way) == ahead:
                under_way.popleft().finish()
            leaving = [pieces[piece] for piece in schedule.sent[step][number : number + 1]]
            arriving = [pieces[piece] for piece in schedule.received[step][number : number + 1]]
            reducing = step < self._ranks - 1
            parts = [next(landings)[: len(piece)] for piece in arriving] if reducing else arriving
            operations = [
                *(dist.P2POp(dist.isend, piece, group=self._group, group_peer=self._next) for piece in leaving),
                *(dist.P2POp(dist.irecv, part, group=self._group, group_peer=self._previous) for part in parts),
            ]
            works = dist.batch_isend_irecv(operations) if operations else []
            under_way.append(_Pair(works, arriving if reducing else [], parts))
        while under_way:
            under_way.popleft().finish()

    def _cut(self, flat: Tensor) -> tuple[Schedule, tuple[Tensor, ...]]:
        schedule = schedule_of(self._ranks, self._rank, flat.numel(), flat.element_size(), self._piece_bytes)
        return schedule, flat.split_with_sizes(schedule.sizes)

    def _send(self, piece: Tensor) -> Any:
        return self._gloo.send([piece], self._next, _TAG)

    def _receive(self, memory: Tensor) -> Any:
        return self._gloo.recv([memory], self._previous, _TAG)

    def _landings(self, flat: Tensor, schedule: Schedule) -> tuple[Tensor, ...]:
        """Kept from call to call, the largest that were needed."""
        elements = max(schedule.sizes)
        kept = self._kept.get(flat.dtype)
        if kept is None or len(kept[0]) < elements:
            kept = self._kept[flat.dtype] = flat.new_empty((_AHEAD, elements)).unbind()
        return kept

    def _staging(self, flat: Tensor) -> Tensor:
        """Kept too, because pinned memory is slow to get."""
        kept = self._pinned.get(flat.dtype)
        if kept is None or len(kept) < len(flat):
            kept = self._pinned[flat.dtype] = torch.empty(len(flat), dtype=flat.dtype, pin_memory=True)
        return kept[: len(flat)]


@dataclass(frozen=True)
class _Pair:
    """A piece sent and one received, as NCCL does them."""

    works: Sequence[dist.Work]
    added_to: Sequence[Tensor]
    parts: Sequence[Tensor]

    def finish(self) -> None:
        for work in self.works:
            work.wait()
        for piece, part in zip(self.added_to, self.parts, strict=False):
            piece.add_(part)


def ring_hook(state: RingAllReduce, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """For DDP: `ddp.register_comm_hook(RingAllReduce(), ring_hook)`. The gradients' sum, which is not divided by N."""
    return state.begin(bucket.buffer())
