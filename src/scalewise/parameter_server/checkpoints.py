"""Gather the state of all servers and workers for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Thread

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.parameter_server.client import (
    SERVER_WAIT_SECONDS,
    ConnectionLost,
    ServerConnection,
    connection_errors,
)
from scalewise.parameter_server.server import Server
from scalewise.runtime.execution import States, states
from scalewise.strategies.server_plan import Piece

_BUFFER, _RANDOM = "buffer/", "random/"


@dataclass(frozen=True)
class Beside:
    """Buffers and random states of workers in the store, which server 0 saves and joining workers load.

    `workers` is the number of synchronous workers, which all write their state for the same step. It is None for
    asynchronous workers, of which the last to write overwrites the others.
    """

    store: Store
    workers: int | None

    def tell(self, model: nn.Module, step: int, worker: int = 0) -> None:
        """Write the buffers of the model and the random states of this worker."""
        tensors = {_RANDOM + kind: state for kind, state in states().items()}
        if self.workers is None or worker == 0:
            tensors |= {_BUFFER + name: tensor for name, tensor in _buffers(model).items()}
        # safetensors refuses tensors that share memory, so each is copied.
        content = save({name: tensor.cpu().clone() for name, tensor in tensors.items()})
        self.store.set(self._key(step, worker), content)  # type: ignore[arg-type]

    def hear(self, model: nn.Module, step: int) -> list[States]:
        """Copy the buffers into the model and return the random states of the workers."""
        states_by_worker = [self._read(step, worker) for worker in range(self.workers or 1)]
        for name, tensor in _buffers(model).items():
            tensor.copy_(states_by_worker[0][_BUFFER + name])
        return [
            {name.removeprefix(_RANDOM): state for name, state in tensors.items() if name.startswith(_RANDOM)}
            for tensors in states_by_worker
        ]

    def _read(self, step: int, worker: int) -> dict[str, Tensor]:
        key = self._key(step, worker)
        tensors = load(bytes(self.store.get(key)))
        if self.workers is not None:
            self.store.delete_key(key)
        return tensors

    def _key(self, step: int, worker: int) -> str:
        return "beside" if self.workers is None else f"beside/{step}/{worker}"


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers of the model."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}


NOW = 0
"""Version number that asks for the current state of all servers, whatever their version."""
WHEN_OVER = -1
"""Version number that asks for the final state; asynchronous servers may end at different versions."""
_END = -2
WEIGHTS = "weights"


class Archive:
    """Collects the weights and optimizer state of all servers on server 0; the other servers answer in a thread.

    `kinds` is the optimizer state of a parameter with two elements, by name.
    """

    def __init__(self, server: Server, pieces: tuple[Piece, ...], kinds: Mapping[str, Tensor], store: Store) -> None:
        self.server, self.pieces = server, pieces
        self.by_element = {key: kinds[key].dtype for key in sorted(kinds) if kinds[key].dim()}
        self.scalars = {key: torch.zeros_like(value) for key, value in kinds.items() if not value.dim()}
        self.connections: dict[int, ServerConnection] = {}
        # A separate store client, because waiting blocks the client.
        self.beside = Beside(store.clone(), server.workers if server.synchronous else None)  # type: ignore[attr-defined]
        if server.number == 0:
            others = sorted({piece.server for piece in pieces} - {0})
            self.connections = {
                other: ServerConnection(store, f"archive/{other}", "worker", SERVER_WAIT_SECONDS) for other in others
            }
        elif server.own_pieces:
            connection = ServerConnection(store, f"archive/{server.number}", "server", SERVER_WAIT_SECONDS)
            self.thread = Thread(target=self._answer, args=(connection,), daemon=True, name="archive")
            self.thread.start()

    def collect(self, version: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return weights and optimizer state of all elements in the order of the model, and scalar state (step counts).

        The other servers answer when they have reached `version` too.
        """
        for connection in self.connections.values():
            connection.send(torch.tensor([version])).wait()
        elements = self.pieces[-1].stop
        [weight, *_] = self.server.weights.values()
        kinds = {WEIGHTS: weight.dtype, **self.by_element}
        whole = {kind: torch.empty(elements, dtype=dtype) for kind, dtype in kinds.items()}
        for number, piece in enumerate(self.pieces):
            for kind, flat in whole.items():
                target = flat[piece.start : piece.stop]
                if piece.server:
                    self.connections[piece.server].receive(target).wait()
                else:
                    target.copy_(self._tensor(number, kind))
        first = self._state(self.server.own_pieces[0])
        return whole, {key: first.get(key, zero) for key, zero in self.scalars.items()}

    def close(self) -> None:
        for connection in self.connections.values():
            connection.send(torch.tensor([_END])).wait()

    def _answer(self, connection: ServerConnection) -> None:
        try:
            self._answer_requests(connection)
        except ConnectionLost:  # server 0 failed, which ends the run and is reported elsewhere
            return
        except BaseException as error:
            self.server.fail(error)

    def _answer_requests(self, connection: ServerConnection) -> None:
        request = torch.empty(1, dtype=torch.int64)
        while (version := self._next_request(connection, request)) != _END:
            with self.server.version_changed:
                self.server.version_changed.wait_for(lambda: self._is_at(version))
            for tensor in self._copy_own_tensors():
                with connection_errors():
                    connection.send(tensor).wait()

    def _is_at(self, version: int) -> bool:
        return self.server.is_over if version == WHEN_OVER else self.server.version >= version

    def _next_request(self, connection: ServerConnection, request: Tensor) -> int:
        with connection_errors():
            connection.receive(request).wait()
        return int(request)

    def _copy_own_tensors(self) -> Iterator[Tensor]:
        """Yield copies of this server's tensors, all from the same moment."""
        locks = [slot.lock for slot in self.server.slots]
        for lock in locks:
            lock.acquire()
        try:
            kinds = [WEIGHTS, *self.by_element]
            copies = [self._tensor(number, kind).clone() for number in self.server.own_pieces for kind in kinds]
        finally:
            for lock in locks:
                lock.release()
        yield from copies

    def _tensor(self, number: int, kind: str) -> Tensor:
        weight = self.server.weights[number].detach()
        if kind == WEIGHTS:
            return weight
        state = self._state(number)
        return state[kind] if kind in state else torch.zeros_like(weight, dtype=self.by_element[kind])

    def _state(self, number: int) -> dict[str, Tensor]:
        """Return the optimizer state of a piece, which is empty before the first update."""
        weight = self.server.weights[number]
        [optimizer] = [slot.optimizer for slot in self.server.slots if number in slot.pieces]
        state: dict[str, Tensor] = optimizer.state.get(weight, {})
        return state
