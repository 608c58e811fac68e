"""All servers' weights and optimizer state brought together on server 0, which writes the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.servers.line import PATIENT_SECONDS, Line, LineLost, on_the_line
from scalewise.servers.server import Server
from scalewise.strategies.pieces import Piece

_THE_END = -1
WEIGHTS = "weights"


class Archive:
    """On server 0 `collect` asks the others; on the others a thread answers."""

    def __init__(self, server: Server, pieces: tuple[Piece, ...], servers: int, store: Store) -> None:
        self.server, self.pieces = server, pieces
        self.lines: dict[int, Line] = {}
        if server.number == 0:
            self.lines = {
                other: Line(store, f"archive/{other}", "worker", PATIENT_SECONDS) for other in range(1, servers)
            }
        else:
            line = Line(store, f"archive/{server.number}", "server", PATIENT_SECONDS)
            self.thread = Thread(target=self._answer, args=(line,), daemon=True, name="archive")
            self.thread.start()

    def collect(self, version: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and states of all elements, in the order of the model, and what is not by element (step counts).

        The other servers answer once they are at `version` too.
        """
        for line in self.lines.values():
            line.send(torch.tensor([version])).wait()
        kinds = [WEIGHTS, *self._state_kinds()]
        elements = self.pieces[-1].stop
        [some, *_] = self.server.weights.values()
        whole = {kind: torch.empty(elements, dtype=some.dtype) for kind in kinds}
        for number, piece in enumerate(self.pieces):
            for kind in kinds:
                into = whole[kind][piece.start : piece.stop]
                if piece.server:
                    self.lines[piece.server].receive(into).wait()
                else:
                    into.copy_(self._held(number, kind))
        return whole, self._scalars()

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
                self.server.version_changed.wait_for(lambda: self.server.version >= version)
            for tensor in self._own():
                with on_the_line():
                    line.send(tensor).wait()

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
            kinds = [WEIGHTS, *self._state_kinds()]
            copies = [self._held(number, kind).clone() for number in self.server.mine for kind in kinds]
        finally:
            for lock in locks:
                lock.release()
        yield from copies

    def _held(self, number: int, kind: str) -> Tensor:
        weight = self.server.weights[number]
        return weight.detach() if kind == WEIGHTS else self._state(number)[kind]

    def _state(self, number: int) -> dict[str, Tensor]:
        weight = self.server.weights[number]
        [optimizer] = [slot.optimizer for slot in self.server.slots if number in slot.pieces]
        return {key: value for key, value in optimizer.state.get(weight, {}).items() if isinstance(value, Tensor)}

    def _state_kinds(self) -> list[str]:
        first = self.server.mine[0]
        shape = self.server.weights[first].shape
        return sorted(key for key, value in self._state(first).items() if value.shape == shape)

    def _scalars(self) -> dict[str, Tensor]:
        first = self.server.mine[0]
        shape = self.server.weights[first].shape
        return {key: value for key, value in self._state(first).items() if value.shape != shape}
