"""The ring all-reduce running for real: c10d's point-to-point operations between neighbours."""
# Annotations are not postponed here: DDP compares those of a communication hook with the classes themselves.

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, cycle, islice, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.collectives.ring import MIB, PIECE_MB, piece_sizes, received_pieces, sent_pieces

_REDUCE, _GATHER = 0, 1
"""Tags. Messages of one tag arrive in the order they were sent, from one call to the next too."""

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
        self._memory: dict[str, Tensor] = {}
        self._background = ThreadPoolExecutor(1, "scalewise-ring")
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, flat: Tensor) -> None:
        """Returns when `flat` holds the sum or, as NCCL's own collectives do, when the stream will see to it."""
        if self._ranks == 1 or not flat.numel():
            return
        if self._gloo is None:
            self._by_pairs(flat)
        elif flat.is_cuda:  # gloo's sockets cannot reach a GPU's memory
            host = self._keep("host", flat, flat.numel(), pin_memory=True)
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
        """For gloo, whose sockets are served by a thread on this one's core: the two should seldom wake each other.

        So the receives of the all-gather are all posted at the start: a piece's whole sum cannot arrive before this
        rank's part in it has left. And sends are posted before receives: what its receiver does not wait for yet is
        written by gloo's thread later, not by this one while gloo's spins for the lock.
        """
        sizes, pieces = self._cut(flat)
        steps = received_pieces(self._ranks, self._rank, sizes)
        reducing, gathering = steps[: self._ranks - 1], steps[self._ranks - 1 :]
        sent = [self._send(pieces[piece], _REDUCE) for piece in sent_pieces(self._ranks, self._rank, sizes)[0]]
        posting = self._post_parts(flat, sizes, chain(*reducing))
        parts = deque(islice(posting, _AHEAD))
        sums = iter([self._receive(pieces[piece], _GATHER) for piece in chain(*gathering)])
        for number, step in enumerate(reducing, start=1):
            tag = _REDUCE if number < len(reducing) else _GATHER
            for piece in step:
                part, arrival = parts.popleft()
                arrival.wait()
                sent.append(self._send(pieces[piece].add_(part), tag))
                parts.extend(islice(posting, 1))
        for piece in chain(*gathering[:-1]):
            next(sums).wait()
            sent.append(self._send(pieces[piece], _GATHER))
        for work in chain(sums, sent):
            work.wait()

    def _post_parts(self, flat: Tensor, sizes: Sequence[int], pieces: Iterator[int]) -> Iterator[tuple[Tensor, Any]]:
        """Posts one more receive whenever asked: by then a piece has been added, and its memory is used again."""
        for piece, landing in zip(pieces, cycle(self._landings(flat, _AHEAD, max(sizes))), strict=False):
            part = landing[: sizes[piece]]
            yield part, self._receive(part, _REDUCE)

    def _by_pairs(self, flat: Tensor) -> None:
        """For NCCL, where a send and a receive are launched as one: alone, each would wait for the peer's other."""
        sizes, pieces = self._cut(flat)
        per_chunk = len(pieces) // self._ranks
        # What arrives in one step leaves in the next, and must have been added by then.
        ahead = min(_AHEAD, per_chunk)
        landings = cycle(self._landings(flat, ahead, max(sizes)))
        sent = sent_pieces(self._ranks, self._rank, sizes)
        received = received_pieces(self._ranks, self._rank, sizes)
        under_way: deque[_Pair] = deque()
        for step, number in product(range(len(sent)), range(per_chunk)):
            if len(under_way) == ahead:
                under_way.popleft().finish()
            leaving = [pieces[piece] for piece in sent[step][number : number + 1]]
            arriving = [pieces[piece] for piece in received[step][number : number + 1]]
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

    def _cut(self, flat: Tensor) -> tuple[list[int], tuple[Tensor, ...]]:
        sizes = piece_sizes(self._ranks, flat.numel(), flat.element_size(), self._piece_bytes)
        return sizes, flat.split_with_sizes(sizes)

    def _send(self, piece: Tensor, tag: int) -> Any:
        return self._gloo.send([piece], self._next, tag)

    def _receive(self, piece: Tensor, tag: int) -> Any:
        return self._gloo.recv([piece], self._previous, tag)

    def _landings(self, flat: Tensor, count: int, elements: int) -> tuple[Tensor, ...]:
        landings: tuple[Tensor, ...] = self._keep("landings", flat, count * elements, device=flat.device).split(
            elements
        )
        return landings

    def _keep(self, use: str, like: Tensor, elements: int, **where: Any) -> Tensor:
        """Memory from earlier calls, where it was enough."""
        bytes = elements * like.element_size()
        kept = self._memory.get(use)
        if kept is None or kept.nbytes < bytes:
            kept = self._memory[use] = torch.empty(bytes, dtype=torch.uint8, **where)
        return kept[:bytes].view(like.dtype)


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
