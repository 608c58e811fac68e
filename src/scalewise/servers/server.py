"""A parameter server: holds its pieces of the weights, applies what workers push, and sends back what they pull."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.servers.attendance import Attendance
from scalewise.servers.client import GOODBYE
from scalewise.servers.line import CONNECT_SECONDS, PATIENT_SECONDS, Line, LineLost, on_the_line
from scalewise.servers.meeting import arrivals
from scalewise.servers.slot import Push, Slot
from scalewise.strategies.pieces import Piece

_END_SECONDS = 30.0


@dataclass
class Served:
    """What one server brings back."""

    applied: int = 0
    """Pushes that are in the weights, as the slots count them."""
    acknowledged: Counter[int] = field(default_factory=Counter)
    """Worker -> pushes of it that were answered with the weights they are in; its replacement's count with its own. One
    that died meanwhile does not hear it: that is not for the server to know."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Versions between pull and update -> how many updates."""
    versions: int = 0


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
        self.number, self.workers = number, workers
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
        self.is_over = False
        """Told like a version: nothing changes the weights any more."""
        self.connecting: set[int] = set()
        """Places of workers that have said they come, and have not."""
        self.attended: dict[int, Attendance] = {}
        self._over: Future[None] = Future()

    @property
    def version(self) -> int:
        """Updates that all pieces have seen."""
        return min((slot.version for slot in self.slots), default=0)

    @property
    def pushes(self) -> int:
        """That all pieces have seen."""
        return min((slot.pushes for slot in self.slots), default=0)

    def serve(self, store: Store) -> Served:
        """Until the end is announced and every worker has said goodbye or gone.

        That a worker is gone is for the launcher to judge; any other error, on whichever thread, is raised here.
        """
        self._start("arrivals", self._welcome, store)
        self._over.result()
        self.attended.clear()  # lines are closed with the run, not when Python next looks for circles
        with self.version_changed:
            self.is_over = True
            self.version_changed.notify_all()
        self.outcome.versions, self.outcome.applied = self.version, self.pushes
        for slot in self.slots[:1]:
            self.outcome.staleness = slot.staleness
        return self.outcome

    def fail(self, error: BaseException) -> None:
        """Ends `serve` with the error, unless another has already."""
        with suppress(InvalidStateError):
            self._over.set_exception(error)

    def _start(self, name: str, work: Callable[..., None], *args: Any) -> Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.fail(error)

        thread = Thread(target=guarded, daemon=True, name=name)
        thread.start()
        return thread

    def _welcome(self, store: Store) -> None:
        threads: dict[int, Thread] = {}
        for place, worker in arrivals(store):
            self.connecting.add(place)
            threads[place] = self._start(f"worker-{worker}", self._attend, store, place, worker)
        # By now each has come and gone, or died on its way here: nobody waits for those.
        deadline = monotonic() + _END_SECONDS
        for place, thread in threads.items():
            if place not in self.connecting:
                thread.join(max(0.0, deadline - monotonic()))
        with suppress(InvalidStateError):  # failed
            self._over.set_result(None)

    def _attend(self, store: Store, place: int, worker: int) -> None:
        try:
            with on_the_line():
                line = Line(store, f"{place}/{self.number}", "server", PATIENT_SECONDS, CONNECT_SECONDS)
            self.connecting.discard(place)
            attendance = Attendance(worker, line, self.weights, copies=not self.synchronous)
            self.attended[place] = attendance
            self._send_first(place, attendance)
            while (samples := attendance.next_header()) != GOODBYE:
                for slot in self.slots:
                    push = Push([attendance.next_gradient(piece) for piece in slot.pieces], samples)
                    slot.arrive(place, push, self._answer)
        except LineLost:
            if self.synchronous:  # the run is over: an update without this worker is not to be made, or saved
                return
        self._leave(place)

    def _leave(self, place: int) -> None:
        for slot in self.slots:
            slot.drop(place, self._answer)
        with ExitStack() as held:  # a push may be on its way from what is pending to its answer
            for slot in self.slots:
                held.enter_context(slot.lock)
            if not any(place in slot.pending for slot in self.slots):  # which is answered when it is applied
                self.attended.pop(place, None)

    def _send_first(self, place: int, attendance: Attendance) -> None:
        attendance.expect_push()
        for slot in self.slots:
            with slot.lock:
                slot.holding[place] = slot.version
                attendance.send(slot)

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
            self.outcome.acknowledged[attendance.worker] += slot is self.slots[-1]  # that completes the push
            with suppress(LineLost):  # gone in the meantime: its own thread finds out
                attendance.send(slot)
