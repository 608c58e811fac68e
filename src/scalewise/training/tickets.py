"""The work of asynchronous workers: every part of every batch once, in order, to whoever asks first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from scalewise.engines.engine import Job
from scalewise.step.settings import steps_per_epoch
from scalewise.step.shards import Shard, epoch_order, shards_of
from scalewise.strategies.shares import share_sizes


@dataclass(frozen=True)
class Part:
    """One worker's share of one batch."""

    ticket: int
    step: int
    number: int
    """Of the batch's parts, which."""
    epoch: int
    shards: list[Shard]

    @property
    def samples(self) -> int:
        return sum(len(shard.rows) for shard in self.shards)


@dataclass(frozen=True)
class Tickets:
    """Taken from a counter that all workers share; iterated over, the parts that this one gets."""

    job: Job
    first: int
    total: int

    def __iter__(self) -> Iterator[Part]:
        place, settings, samples = self.job.place, self.job.settings, len(self.job.data)
        per_epoch = steps_per_epoch(samples, settings.batch)
        known: tuple[int, list[Tensor]] = (-1, [])
        assert place.store is not None
        while True:
            ticket = self.first * place.world + place.store.add("tickets", 1) - 1
            step, number = divmod(ticket, place.world)
            if step >= self.total:
                return
            epoch, batch = divmod(step, per_epoch)
            if known[0] != epoch:
                known = epoch, list(epoch_order(settings.seed, epoch, samples).split(settings.batch))
            rows = known[1][batch]
            if share_sizes(len(rows), place.world)[number]:
                yield Part(ticket, step, number, epoch, shards_of(rows, place.world, number, settings.accumulate))

    @property
    def last(self) -> int:
        """The last ticket that there are samples for."""
        place, samples, batch = self.job.place, len(self.job.data), self.job.settings.batch
        number = (self.total - 1) % steps_per_epoch(samples, batch)
        in_last = min(batch, samples - number * batch)
        return (self.total - 1) * place.world + min(in_last, place.world) - 1


@dataclass
class InHand:
    """Parts as they are worked on, whose rows loaders may ask for ahead of that: they take the next parts then."""

    tickets: Iterator[Part]
    _to_do: deque[Part] = field(default_factory=deque)
    _to_load: deque[Part] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Part]:
        while self._to_do or self._take():
            yield self._to_do.popleft()

    def rows(self) -> Iterator[Tensor]:
        while self._to_load or self._take():
            for shard in self._to_load.popleft().shards:
                yield shard.rows

    def _take(self) -> bool:
        part = next(self.tickets, None)
        if part is None:
            return False
        self._to_do.append(part)
        self._to_load.append(part)
        return True
