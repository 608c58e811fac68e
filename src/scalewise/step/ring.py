"""The ring all-reduce running for real, between neighbours: over TCP, or over NCCL between GPUs."""
# Annotations are not postponed here: DDP compares those of a communication hook with the classes themselves.

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.collectives.ring import MIB, PIECE_MB
from scalewise.step.neighbours import Neighbours
from scalewise.step.pair_ring import PairRing
from scalewise.step.socket_ring import SocketRing


class RingAllReduce:
    """Sums a flat tensor over the ranks of a group, in place: `ring(flat)`. All ranks make one at the same time."""

    def __init__(self, group: dist.ProcessGroup | None = None, piece_bytes: int = int(PIECE_MB * MIB)) -> None:
        found: dist.ProcessGroup = group or dist.group.WORLD  # type: ignore[assignment]
        self._ranks = dist.get_world_size(found)
        self._on_host = dist.get_backend(found) == "gloo"
        self._pinned: dict[torch.dtype, Tensor] = {}
        self._background = ThreadPoolExecutor(1, "scalewise-ring")
        self._stream: torch.cuda.Stream | None = None
        self._neighbours: Neighbours | None = None
        self._failed: Exception | None = None
        self._reduce: Callable[[Tensor], None]
        if self._on_host and self._ranks > 1:
            timeout = found._get_backend(torch.device("cpu")).options._timeout
            self._neighbours = Neighbours(found, timeout.total_seconds())
            self._reduce = SocketRing(self._neighbours, piece_bytes)
        else:
            self._reduce = PairRing(found, piece_bytes)

    def __call__(self, flat: Tensor) -> None:
        """Returns when `flat` holds the sum or, as NCCL's own collectives do, when the stream will see to it."""
        if flat.layout is not torch.strided:
            raise ValueError(
                "sparse gradients cannot go round a ring; make them dense, as nn.Embedding(sparse=False) does"
            )
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

    def close(self) -> None:
        """No call follows."""
        self._background.shutdown()
        if self._neighbours is not None:
            self._neighbours.close()

    def _finish(self, flat: Tensor, done: Future[Tensor]) -> None:
        """After a failure ranks are out of step with each other: what follows fails of the same."""
        try:
            if self._failed is not None:
                raise self._failed
            self(flat)
            done.set_result(flat)
        except Exception as error:
            self._failed = error
            done.set_exception(error)  # type: ignore[arg-type]

    def _finish_on_stream(self, flat: Tensor, done: Future[Tensor], ready: torch.cuda.Event) -> None:
        """On a stream of its own, so that backward's goes on; the future has its readers' streams wait for this one."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(flat.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            self._finish(flat, done)

    def _staging(self, flat: Tensor) -> Tensor:
        """Kept, because pinned memory is slow to get."""
        kept = self._pinned.get(flat.dtype)
        if kept is None or len(kept) < len(flat):
            kept = self._pinned[flat.dtype] = torch.empty(len(flat), dtype=flat.dtype, pin_memory=True)
        return kept[: len(flat)]


def ring_hook(state: RingAllReduce, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """For DDP: `ddp.register_comm_hook(RingAllReduce(), ring_hook)`. The gradients' sum, which is not divided by N."""
    return state.begin(bucket.buffer())
