"""All servers' weights and optimizer state brought together on server 0, which writes the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Thread

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.servers.beside import Beside
from scalewise.servers.line import PATIENT_SECONDS, Line, LineLost, on_the_line
from scalewise.servers.server import Server
from scalewise.strategies.pieces import Piece

NOW = 0
"""In place of a version: whatever the others are at."""
WHEN_OVER = -1
"""The last there is: servers that apply pushes as they come need not count to the same version."""
_THE_END = -2
WEIGHTS = "weights"


class Archive:
    """On server 0 `collect` asks the others; on the others a thread answers. `kinds`: the optimizer's state, by name,
    as it is for two elements."""

    def __init__(self, server: Server, pieces: tuple[Piece, ...], kinds: Mapping[str, Tensor], store: Store) -> None:
        self.server, self.pieces = server, pieces
        self.by_element = {key: kinds[key].dtype for key in sorted(kinds) if kinds[key].dim()}
        self.scalars = {key: torch.zeros_like(value) for key, value in kinds.items() if not value.dim()}
        self.lines: dict[int, Line] = {}
        # A client of its own: it may have to wait.
        self.beside = Beside(store.clone(), server.workers if server.synchronous else None)  # type: ignore[attr-defined]
        if server.number == 0:
            others = sorted({piece.server for piece in pieces} - {0})
            self.lines = {other: Line(store, f"archive/{other}", "worker", PATIENT_SECONDS) for other in others}
        elif server.mine:
            line = Line(store, f"archive/{server.number}", "server", PATIENT_SECONDS)
            self.thread = Thread(target=self._answer, args=(line,), daemon=True, name="archive")
            self.thread.start()

    def collect(self, version: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and states of all elements, in the order of the model, and what is not by element (step counts).

        The other servers answer once they are at `version` too.
        """
        for line in self.lines.values():
            line.send(torch.tensor([version])).wait()
        elements = self.pieces[-1].stop
        [some, *_] = self.server.weights.values()
        kinds = {WEIGHTS: some.dtype, **self.by_element}
        whole = {kind: torch.empty(elements, dtype=dtype) for kind, dtype in kinds.items()}
        for number, piece in enumerate(self.pieces):
            for kind, flat in whole.items():
                into = flat[piece.start : piece.stop]
                if piece.server:
                    self.lines[piece.server].receive(into).wait()
                else:
                    into.copy_(self._held(number, kind))
        first = self._state(self.server.mine[0])
        return whole, {key: first.get(key, nothing) for key, nothing in self.scalars.items()}

    def close(self) -> None:
        for line in self.lines.values():
            line.send(torch.tensor([_THE_END])).wait()

    def _answer(self, line: Line) -> None:
        try:
            self._answer_until_the_end(line)
        except LineLost:  # with server 0 the run is over, and others say so
            return
        except BaseException as error:
            self.server.fail(error)

    def _answer_until_the_end(self, line: Line) -> None:
        asked = torch.empty(1, dtype=torch.int64)
        while (version := self._next_question(line, asked)) != _THE_END:
            with self.server.version_changed:
                self.server.version_changed.wait_for(lambda: self._is_at(version))
            for tensor in self._own():
                with on_the_line():
                    line.send(tensor).wait()

    def _is_at(self, version: int) -> bool:
        return self.server.is_over if version == WHEN_OVER else self.server.version >= version

    def _next_question(self, line: Line, asked: Tensor) -> int:
        with on_the_line():
            line.receive(asked).wait()
        return int(asked)

    def _own(self) -> Iterator[Tensor]:
        """Copies, all of one moment."""
        locks = [slot.lock for slot in self.server.slots]
        for lock in locks:
            lock.acquire()
        try:
            kinds = [WEIGHTS, *self.by_element]
            copies = [self._held(number, kind).clone() for number in self.server.mine for kind in kinds]
        finally:
            for lock in locks:
                lock.release()
        yield from copies

    def _held(self, number: int, kind: str) -> Tensor:
        weight = self.server.weights[number].detach()
        if kind == WEIGHTS:
            return weight
        state = self._state(number)
        return state[kind] if kind in state else torch.zeros_like(weight, dtype=self.by_element[kind])

    def _state(self, number: int) -> dict[str, Tensor]:
        """Nothing before the first update."""
        weight = self.server.weights[number]
        [optimizer] = [slot.optimizer for slot in self.server.slots if number in slot.pieces]
        state: dict[str, Tensor] = optimizer.state.get(weight, {})
        return state
