"""A server's side of one worker's line."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scalewise.servers.client import GOODBYE
from scalewise.servers.line import Line, on_the_line, pull_tag, push_tag
from scalewise.servers.slot import Slot


class Attendance:
    """One worker's line, with memory for what comes and, where others may change weights meanwhile, what goes.

    Raises LineLost when the worker is gone.
    """

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
        with on_the_line():
            self.awaited_header = self.line.receive(self.header)
            for piece in self.inbox:
                self._expect(piece)

    def next_header(self) -> int:
        with on_the_line():
            self.awaited_header.wait()
        samples = int(self.header)
        if samples != GOODBYE:
            with on_the_line():
                self.awaited_header = self.line.receive(self.header)
        return samples

    def next_gradient(self, piece: int) -> Tensor:
        with on_the_line():
            self.awaited[piece].wait()
        return self.inbox[piece]

    def send(self, slot: Slot) -> None:
        """The slot's weights; afterwards its gradients are no longer needed, and the next may come."""
        for piece in slot.pieces:
            leaving = self.weights[piece].detach()
            if piece in self.sent:
                with on_the_line():
                    self.sent[piece].wait()
                    self._expect(piece)
            if self.outbox is not None:
                leaving = self.outbox[piece].copy_(leaving)
            with on_the_line():
                self.sent[piece] = self.line.send(leaving, pull_tag(piece))

    def _expect(self, piece: int) -> None:
        self.awaited[piece] = self.line.receive(self.inbox[piece], push_tag(piece))
