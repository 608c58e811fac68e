"""Parameter server: apply pushed gradients and send back weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from threading import Condition, RLock, Thread
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.parameter_server.client import (
    CONNECT_SECONDS,
    GOODBYE,
    SERVER_WAIT_SECONDS,
    ConnectionLost,
    ServerConnection,
    arrivals,
    connection_errors,
    pull_tag,
    push_tag,
)
from scalewise.strategies.server_plan import Piece


@dataclass(frozen=True)
class Push:
    """Gradients of a slot's pieces from one worker, and the number of samples that they are the mean of."""

    gradients: Sequence[Tensor]
    samples: int


@dataclass
class Slot:
    """Pieces of the weights that are updated together.

    Pending pushes are applied as soon as the update makes no push that is still awaited too stale; pushes that had to
    wait are averaged. With `max_staleness` 0 this is the synchronous update: the sum of all pushes makes one version.
    """

    pieces: Sequence[int]
    weights: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer
    max_staleness: int | None
    version: int = 0
    """Number of updates."""
    pushes: int = 0
    """Number of pushes in the weights; one update may apply several."""
    holding: dict[int, int] = field(default_factory=dict)
    """Position of a worker -> version of the weights that it computes with."""
    pending: dict[int, Push] = field(default_factory=dict)
    """Position of a worker -> its push that has not been applied yet."""
    pulled: dict[int, int] = field(default_factory=dict)
    """Position of a worker -> version that its pending push was computed with; the worker may be gone."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Versions between pull and update -> number of pushes."""
    lock: RLock = field(default_factory=RLock)
    whole_batch: int | None = None
    """Number of samples that the learning rate is meant for; smaller updates scale it down. None: never scaled."""
    worker_at: Mapping[int, int] = field(default_factory=dict)
    """Position of a worker -> its number. Pushes are added in the order of the numbers: workers take their positions
    in any order, and the last bits of a sum depend on the order."""

    def __post_init__(self) -> None:
        self.learning_rates = [group["lr"] for group in self.optimizer.param_groups]
        # Adaptive optimizers divide by the gradient's size, which already makes steps smaller for noisy gradients.
        self.power = 1.0 if isinstance(self.optimizer, torch.optim.SGD) else 0.5

    def arrive(self, place: int, push: Push, answer: Callable[[Slot, list[int]], None]) -> None:
        """Add a push; call `answer` under the lock with the positions of the workers whose pushes were applied."""
        with self.lock:
            self.pending[place] = push
            self.pulled[place] = self.holding.get(place, self.version)
            self._apply_if_due(answer)

    def drop(self, place: int, answer: Callable[[Slot, list[int]], None]) -> None:
        """Stop waiting for this worker; a push that has arrived completely is still applied."""
        with self.lock:
            self.holding.pop(place, None)
            self._apply_if_due(answer)

    def _apply_if_due(self, answer: Callable[[Slot, list[int]], None]) -> None:
        awaited = [version for place, version in self.holding.items() if place not in self.pending]
        if not self.pending or any(self._too_stale(version) for version in awaited):
            return
        places = sorted(self.pending, key=lambda place: (self.worker_at.get(place, place), place))
        pushes = [self.pending.pop(place) for place in places]
        self._update(pushes)
        for place in places:
            self.staleness[self.version - self.pulled.pop(place)] += 1
        self.version += 1
        self.pushes += len(pushes)
        self.holding |= {place: self.version for place in places if place in self.holding}
        answer(self, places)

    def _too_stale(self, version: int) -> bool:
        return self.max_staleness is not None and self.version + 1 - version > self.max_staleness

    def _update(self, pushes: list[Push]) -> None:
        """Average the pushes by samples, or sum them if synchronous (workers have weighted them), and update."""
        samples = sum(push.samples for push in pushes)
        for number, weight in enumerate(self.weights):
            total = pushes[0].gradients[number]
            if self.max_staleness != 0 and len(pushes) > 1:
                total.mul_(pushes[0].samples / samples)
            for push in pushes[1:]:
                total.add_(push.gradients[number], alpha=push.samples / samples if self.max_staleness != 0 else 1)
            weight.grad = total
        if self.whole_batch:
            part = min(1.0, samples / self.whole_batch) ** self.power
            for group, rate in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
                group["lr"] = rate * part
        self.optimizer.step()


class WorkerSession:
    """Connection to one worker, with buffers for its gradients and (`copies`) for the weights being sent.

    Copies are needed if other workers may change the weights meanwhile. Raise ConnectionLost when the worker is gone.
    """

    def __init__(
        self, worker: int, connection: ServerConnection, weights: dict[int, nn.Parameter], *, copies: bool
    ) -> None:
        self.worker, self.connection, self.weights = worker, connection, weights
        self.header = torch.empty(1, dtype=torch.int64)
        self.inbox = {piece: torch.empty_like(weight, requires_grad=False) for piece, weight in weights.items()}
        self.outbox = {piece: torch.empty_like(tensor) for piece, tensor in self.inbox.items()} if copies else None
        self.sent: dict[int, Any] = {}
        self.awaited: dict[int, Any] = {}
        self.awaited_header: Any = None

    def expect_push(self) -> None:
        """Post the receives of a push, without which gloo holds its messages back."""
        with connection_errors():
            self.awaited_header = self.connection.receive(self.header)
            for piece in self.inbox:
                self._expect(piece)

    def next_header(self) -> int:
        """Wait for the next push or GOODBYE and return its number of samples."""
        with connection_errors():
            self.awaited_header.wait()
        samples = int(self.header)
        if samples != GOODBYE:
            with connection_errors():
                self.awaited_header = self.connection.receive(self.header)
        return samples

    def next_gradient(self, piece: int) -> Tensor:
        with connection_errors():
            self.awaited[piece].wait()
        return self.inbox[piece]

    def send(self, slot: Slot) -> None:
        """Send the weights of a slot and post the receives of its next gradients."""
        for piece in slot.pieces:
            outgoing = self.weights[piece].detach()
            if piece in self.sent:
                with connection_errors():
                    self.sent[piece].wait()
                    self._expect(piece)
            if self.outbox is not None:
                outgoing = self.outbox[piece].copy_(outgoing)
            with connection_errors():
                self.sent[piece] = self.connection.send(outgoing, pull_tag(piece))

    def _expect(self, piece: int) -> None:
        self.awaited[piece] = self.connection.receive(self.inbox[piece], push_tag(piece))


_END_SECONDS = 30.0


@dataclass
class Served:
    """Result of one server."""

    applied: int = 0
    """Number of pushes that are in the weights."""
    acknowledged: Counter[int] = field(default_factory=Counter)
    """Worker -> number of its pushes that were applied and answered with new weights, including those of replacements
    of the worker. The worker may have died before it received an answer."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Versions between pull and update -> number of pushes."""
    versions: int = 0
    """Number of updates."""


class Server:
    """Parameter server with one thread per worker.

    A synchronous server has one slot (and so one lock) per piece, an asynchronous server has one for all pieces.
    """

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
        self.own_pieces = [place for place, piece in enumerate(pieces) if piece.server == number]
        self.weights = {
            place: nn.Parameter(weights[pieces[place].start : pieces[place].stop].clone()) for place in self.own_pieces
        }
        self.synchronous = max_staleness == 0
        # Backward computes the gradients of the last layers first, so their pieces arrive first.
        ordered = list(reversed(self.own_pieces))
        groups = [[piece] for piece in ordered] if self.synchronous else [ordered]
        # All workers are awaited from the start; otherwise an early push would be applied without the others.
        awaited = range(workers) if self.synchronous else ()
        self.worker_at: dict[int, int] = {}
        self.slots = [
            Slot(
                group,
                parameters,
                make_optimizer(parameters),
                max_staleness,
                holding=dict.fromkeys(awaited, 0),
                whole_batch=whole_batch,
                worker_at=self.worker_at,
            )
            for group in groups
            if (parameters := [self.weights[piece] for piece in group])
        ]
        self.outcome = Served()
        self.version_changed = Condition()
        self.on_version: Callable[[int], None] = lambda _: None
        """Called when all pieces have reached a version, before the workers that wait for it continue."""
        self.announced = 0
        """Last version that `on_version` was called for."""
        self.is_over = False
        """Whether the weights are final; waiters on `version_changed` are notified."""
        self.connecting: set[int] = set()
        """Positions of workers that have announced themselves but not connected yet."""
        self.sessions: dict[int, WorkerSession] = {}
        """Position of a connected worker -> its session."""
        self._over: Future[None] = Future()

    @property
    def version(self) -> int:
        """Number of updates that have been applied to all pieces."""
        return min((slot.version for slot in self.slots), default=0)

    @property
    def pushes(self) -> int:
        """Number of pushes that have been applied to all pieces."""
        return min((slot.pushes for slot in self.slots), default=0)

    def serve(self, store: Store) -> Served:
        """Serve until the end is announced and every worker has left or died.

        A dead worker is no error here, because the launcher handles it. Errors of all threads are raised here.
        """
        self._start("arrivals", self._accept_workers, store)
        self._over.result()
        self.sessions.clear()  # closes the connections now, not at the next garbage collection
        with self.version_changed:
            self.is_over = True
            self.version_changed.notify_all()
        self.outcome.versions, self.outcome.applied = self.version, self.pushes
        for slot in self.slots[:1]:
            self.outcome.staleness = slot.staleness
        return self.outcome

    def fail(self, error: BaseException) -> None:
        """End `serve` with this error, unless it has ended already."""
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

    def _accept_workers(self, store: Store) -> None:
        threads: dict[int, Thread] = {}
        for place, worker in arrivals(store):
            self.connecting.add(place)
            self.worker_at[place] = worker
            threads[place] = self._start(f"worker-{worker}", self._serve_worker, store, place, worker)
        # All workers have announced themselves. Those that never connected have died, so they are not joined.
        deadline = monotonic() + _END_SECONDS
        for place, thread in threads.items():
            if place not in self.connecting:
                thread.join(max(0.0, deadline - monotonic()))
        with suppress(InvalidStateError):  # failed
            self._over.set_result(None)

    def _serve_worker(self, store: Store, place: int, worker: int) -> None:
        try:
            with connection_errors():
                connection = ServerConnection(
                    store, f"{place}/{self.number}", "server", SERVER_WAIT_SECONDS, CONNECT_SECONDS
                )
            self.connecting.discard(place)
            session = WorkerSession(worker, connection, self.weights, copies=not self.synchronous)
            self.sessions[place] = session
            self._send_first(place, session)
            while (samples := session.next_header()) != GOODBYE:
                for slot in self.slots:
                    push = Push([session.next_gradient(piece) for piece in slot.pieces], samples)
                    slot.arrive(place, push, self._answer)
        except ConnectionLost:
            if self.synchronous:  # the run fails: do not update or save without this worker
                return
        self._leave(place)

    def _leave(self, place: int) -> None:
        for slot in self.slots:
            slot.drop(place, self._answer)
        with ExitStack() as locks:  # no other thread may be between taking a pending push and answering it
            for slot in self.slots:
                locks.enter_context(slot.lock)
            if not any(place in slot.pending for slot in self.slots):  # a pending push is answered when it is applied
                self.sessions.pop(place, None)

    def _send_first(self, place: int, session: WorkerSession) -> None:
        session.expect_push()
        for slot in self.slots:
            with slot.lock:
                slot.holding[place] = slot.version
                session.send(slot)

    def _answer(self, slot: Slot, places: list[int]) -> None:
        with self.version_changed:
            self.version_changed.notify_all()
            reached = self.version
            due = reached > self.announced
            self.announced = reached
        if due:
            self.on_version(reached)
        for place in places:
            session = self.sessions[place]
            self.outcome.acknowledged[session.worker] += slot is self.slots[-1]  # the last slot completes the push
            with suppress(ConnectionLost):  # the worker is gone, which its own thread handles
                session.send(slot)
