"""The ring all-reduce over TCP, in the thread that calls it."""

from __future__ import annotations

import torch
from torch import Tensor

from scalewise.collectives.ring import schedule_of
from scalewise.step.neighbours import Neighbours


class SocketRing:
    """Sums a flat tensor of host memory over the ranks, in place.

    One loop sends what is ready, receives what has come and adds it, and waits only when it can do none of these:

        receive   a b c d
        add        a b c d
        send        a b c d

    gloo's own operations each wake a thread that does them and then the one that waits: between ranks that share cores
    that costs more than the bytes do.
    """

    def __init__(self, neighbours: Neighbours, piece_bytes: int) -> None:
        self._neighbours = neighbours
        self._piece_bytes = piece_bytes
        self._landing = torch.empty(0, dtype=torch.uint8)

    def __call__(self, flat: Tensor) -> None:
        here = self._neighbours
        size = flat.element_size()
        schedule = schedule_of(here.ranks, here.rank, flat.numel(), size, self._piece_bytes)
        pieces = flat.split_with_sizes(schedule.sizes)
        arriving = [pieces[piece] for step in schedule.received for piece in step]
        added = sum(map(len, schedule.received[: here.ranks - 1]))
        # What arrives in one step leaves in the next.
        leaving = _Leaving(here, [pieces[piece] for step in schedule.sent for piece in step], len(schedule.sent[0]))
        if len(self._landing) < max(schedule.sizes) * size:
            self._landing = torch.empty(max(schedule.sizes) * size, dtype=torch.uint8)
        for number, piece in enumerate(arriving):
            if number < added:
                landing = self._landing[: piece.numel() * size].view(flat.dtype)
                self._receive(landing, leaving)
                piece.add_(landing)
            else:
                self._receive(piece, leaving)
            leaving.ready += 1
        while not leaving.send():
            here.wait_to_send()

    def _receive(self, into: Tensor, leaving: _Leaving) -> None:
        """All of it, sending meanwhile."""
        here, data = self._neighbours, _bytes_of(into)
        while data:
            all_sent = leaving.send()
            if received := here.receive(data):
                data = data[received:]
            else:
                here.wait_to_receive(len(data), or_to_send=not all_sent)


class _Leaving:
    """Pieces in the order in which they are sent, of which so many are ready to be."""

    def __init__(self, neighbours: Neighbours, pieces: list[Tensor], ready: int) -> None:
        self._neighbours, self._pieces = neighbours, pieces
        self.ready = ready
        self._begun = 0
        self._rest = memoryview(b"")

    def send(self) -> bool:
        """Whether all that is ready has been handed to the kernel, as far as it took it."""
        while self._rest or self._begun < min(self.ready, len(self._pieces)):
            if not self._rest:
                self._rest = _bytes_of(self._pieces[self._begun])
                self._begun += 1
            sent = self._neighbours.send(self._rest)
            if not sent:
                return False
            self._rest = self._rest[sent:]
        return True


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]
