"""A parameter server: holds its pieces of the weights, applies what workers push, and sends back what they pull."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.servers.client import GOODBYE
from scalewise.servers.line import PATIENT_SECONDS, Line, pull_tag, push_tag
from scalewise.servers.meeting import arrivals
from scalewise.servers.slot import Push, Slot
from scalewise.strategies.pieces import Piece

_END_SECONDS = 30.0


@dataclass
class Served:
    """What one server brings back."""

    applied: Counter[int] = field(default_factory=Counter)
    """Worker -> pushes of it that are in the weights; its replacement's count with its own."""
    acknowledged: Counter[int] = field(default_factory=Counter)
    """Worker -> pushes of it that were answered with the new weights."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Versions between pull and update -> how many updates."""
    versions: int = 0
    lost: list[int] = field(default_factory=list)
    """Workers that went away without a goodbye."""


class Server:
    """A thread for every worker; a slot, and so a lock, for every piece, or one for all in the asynchronous case."""

    def __init__(
        self,
        number: int,
        pieces: tuple[Piece, ...],
        weights: Tensor,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        max_staleness: int | None,
        workers: int,
        whole_batch: int | None = None,
    ) -> None:
        self.number = number
        self.mine = [place for place, piece in enumerate(pieces) if piece.server == number]
        self.weights = {
            place: nn.Parameter(weights[pieces[place].start : pieces[place].stop].clone()) for place in self.mine
        }
        self.synchronous = max_staleness == 0
        # Backward reaches the last layers first, so their pieces come first.
        groups = [[piece] for piece in reversed(self.mine)] if self.synchronous else [list(reversed(self.mine))]
        # All workers are counted on from the start, or the push of one that is early would be applied without theirs.
        awaited = range(workers) if self.synchronous else ()
        self.slots = [
            Slot(
                group,
                chosen,
                make_optimizer(chosen),
                max_staleness,
                holding=dict.fromkeys(awaited, 0),
                whole_batch=whole_batch,
            )
            for group in groups
            if (chosen := [self.weights[piece] for piece in group])
        ]
        self.outcome = Served()
        self.version_changed = Condition()
        self.on_version: Callable[[int], None] = lambda _: None
        """Called when all pieces have reached a version, before the workers that wait for it may go on."""
        self.announced = 0
        self.attended: dict[int, _Attendance] = {}

    @property
    def version(self) -> int:
        """Updates that all pieces have seen."""
        return min((slot.version for slot in self.slots), default=0)

    def serve(self, store: Store) -> Served:
        """Until the end is announced and every worker has said goodbye or gone."""
        threads: list[Thread] = []
        for place, worker in arrivals(store):
            thread = Thread(target=self._attend, args=(store, place, worker), daemon=True, name=f"worker-{worker}")
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join(_END_SECONDS)
        self.outcome.versions = self.version
        for slot in self.slots[:1]:
            self.outcome.staleness = slot.staleness
        return self.outcome

    def _attend(self, store: Store, place: int, worker: int) -> None:
        try:
            line = Line(store, f"{place}/{self.number}", "server", PATIENT_SECONDS)
            attendance = _Attendance(worker, line, self.weights, copies=not self.synchronous)
            self.attended[place] = attendance
            self._send_first(place, attendance)
            while (samples := attendance.next_header()) != GOODBYE:
                for slot in self.slots:
                    push = Push([attendance.next_gradient(piece) for piece in slot.pieces], samples)
                    slot.arrive(place, push, self._answer)
        except RuntimeError:  # gloo: the other end is gone
            self.outcome.lost.append(worker)
        for slot in self.slots:
            slot.drop(place, self._answer)

    def _send_first(self, place: int, attendance: _Attendance) -> None:
        for slot in self.slots:
            with slot.lock:
                slot.holding[place] = slot.version
                attendance.send(slot)
        attendance.expect_push()

    def _answer(self, slot: Slot, places: list[int]) -> None:
        with self.version_changed:
            self.version_changed.notify_all()
            reached = self.version
            due = reached > self.announced
            self.announced = reached
        if due:
            self.on_version(reached)
        for place in places:
            attendance = self.attended[place]
            whole_push = slot is self.slots[-1]
            self.outcome.applied[attendance.worker] += whole_push
            with suppress(RuntimeError):  # gone in the meantime: its own thread finds out
                attendance.send(slot)
                self.outcome.acknowledged[attendance.worker] += whole_push


class _Attendance:
    """One worker's line, with memory for what comes and, where others may change weights meanwhile, what goes."""

    def __init__(self, worker: int, line: Line, weights: dict[int, nn.Parameter], *, copies: bool) -> None:
        self.worker, self.line, self.weights = worker, line, weights
        self.header = torch.empty(1, dtype=torch.int64)
        self.inbox = {piece: torch.empty_like(weight, requires_grad=False) for piece, weight in weights.items()}
        self.outbox = {piece: torch.empty_like(tensor) for piece, tensor in self.inbox.items()} if copies else None
        self.sent: dict[int, Any] = {}
        self.awaited: dict[int, Any] = {}
        self.awaited_header: Any = None

    def expect_push(self) -> None:
        """Posted before it comes: gloo holds a message back until somebody waits for it."""
        self.awaited_header = self.line.receive(self.header)
        for piece in self.inbox:
            self._expect(piece)

    def next_header(self) -> int:
        self.awaited_header.wait()
        samples = int(self.header)
        if samples != GOODBYE:
            self.awaited_header = self.line.receive(self.header)
        return samples

    def next_gradient(self, piece: int) -> Tensor:
        self.awaited[piece].wait()
        return self.inbox[piece]

    def send(self, slot: Slot) -> None:
        """The slot's weights; afterwards its gradients are no longer needed, and the next may come."""
        for piece in slot.pieces:
            leaving = self.weights[piece].detach()
            if piece in self.sent:
                self.sent[piece].wait()
                self._expect(piece)
            if self.outbox is not None:
                leaving = self.outbox[piece].copy_(leaving)
            self.sent[piece] = self.line.send(leaving, pull_tag(piece))

    def _expect(self, piece: int) -> None:
        self.awaited[piece] = self.line.receive(self.inbox[piece], push_tag(piece))
