"""The ring all-reduce between GPUs: c10d's point-to-point operations, in pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewise.collectives.ring import Schedule, schedule_of

_AHEAD = 2
"""Pieces of a chunk under way at a time, each with memory of its own to arrive in."""


class PairRing:
    """Sums a flat tensor over the ranks, in place; NCCL's streams do the waiting.

    While a piece is added, the one before it, now a sum, is sent and the one after it received.
    """

    def __init__(self, group: dist.ProcessGroup, piece_bytes: int) -> None:
        self._group = group
        self._piece_bytes = piece_bytes
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._next, self._previous = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        self._landings: dict[torch.dtype, tuple[Tensor, ...]] = {}

    def __call__(self, flat: Tensor) -> None:
        schedule = schedule_of(self._ranks, self._rank, flat.numel(), flat.element_size(), self._piece_bytes)
        exchanges = list(self._exchanges(flat, schedule))
        ahead = min(_AHEAD, schedule.window)
        for number, exchange in enumerate(exchanges):
            if number >= ahead:
                exchanges[number - ahead].finish()
            self._start(exchange)
        for exchange in exchanges[-ahead:]:
            exchange.finish()

    def _exchanges(self, flat: Tensor, schedule: Schedule) -> Iterator[_Exchange]:
        """All of them, before any: between two pieces there is no time to lose."""
        pieces = flat.split_with_sizes(schedule.sizes)
        free = cycle(self._landings_for(flat, max(schedule.sizes)))
        for step, (sent, received) in enumerate(zip(schedule.sent, schedule.received, strict=True)):
            for leaving, arriving in zip_longest(sent, received):
                exchange = _Exchange()
                if leaving is not None:
                    exchange.out = pieces[leaving]
                if arriving is not None and step < self._ranks - 1:
                    exchange.into = next(free)[: schedule.sizes[arriving]]
                    exchange.sum = pieces[arriving], exchange.into
                elif arriving is not None:
                    exchange.into = pieces[arriving]
                yield exchange

    def _start(self, exchange: _Exchange) -> None:
        """As one operation: alone, a send would wait for the peer's receive, and that for the peer's send."""
        operations = []
        if exchange.out is not None:
            operations.append(dist.P2POp(dist.isend, exchange.out, group=self._group, group_peer=self._next))
        if exchange.into is not None:
            operations.append(dist.P2POp(dist.irecv, exchange.into, group=self._group, group_peer=self._previous))
        exchange.works = dist.batch_isend_irecv(operations)

    def _landings_for(self, flat: Tensor, elements: int) -> tuple[Tensor, ...]:
        """Kept from call to call, the largest that were needed."""
        kept = self._landings.get(flat.dtype)
        if kept is None or len(kept[0]) < elements:
            kept = self._landings[flat.dtype] = flat.new_empty((_AHEAD, elements)).unbind()
        return kept


@dataclass(slots=True)
class _Exchange:
    """A piece sent to the next rank while one is received from the previous one; either may be missing."""

    out: Tensor | None = None
    into: Tensor | None = None
    sum: tuple[Tensor, Tensor] | None = None
    """In the reduce-scatter: a piece, and what is added to it once it is here."""
    works: Any = ()

    def finish(self) -> None:
        for work in self.works:
            work.wait()
        if self.sum is not None:
            piece, arrived = self.sum
            piece.add_(arrived)
