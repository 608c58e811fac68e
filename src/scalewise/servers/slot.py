"""Pieces that a server updates together, from the pushes that have arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Push:
    """One worker's gradients of a slot's pieces, and how many samples they are the mean of."""

    gradients: Sequence[Tensor]
    samples: int


@dataclass
class Slot:
    """Applies pushes as soon as none that is still awaited would become too stale by it, else waits and averages.

    With `max_staleness` 0 that is the synchronous update: all pushes, summed, make one version.
    """

    pieces: Sequence[int]
    weights: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer
    max_staleness: int | None
    version: int = 0
    pushes: int = 0
    """That are in the weights: several may have made one version."""
    holding: dict[int, int] = field(default_factory=dict)
    """The version of the weights that each worker (by its place) computes with."""
    pending: dict[int, Push] = field(default_factory=dict)
    pulled: dict[int, int] = field(default_factory=dict)
    """Of what is pending, the versions that it was computed with; its worker may be gone by now."""
    staleness: Counter[int] = field(default_factory=Counter)
    lock: RLock = field(default_factory=RLock)
    whole_batch: int | None = None
    """Samples that the learning rate is meant for: an update by fewer takes less of it; None: all of it."""

    def __post_init__(self) -> None:
        self.learning_rates = [group["lr"] for group in self.optimizer.param_groups]
        # Optimizers that divide by the gradient's size already take smaller steps where it is noisier.
        self.power = 1.0 if isinstance(self.optimizer, torch.optim.SGD) else 0.5

    def arrive(self, place: int, push: Push, answer: Callable[[Slot, list[int]], None]) -> None:
        """`answer` is told whose pushes are now in the weights, while nobody can change them."""
        with self.lock:
            self.pending[place] = push
            self.pulled[place] = self.holding.get(place, self.version)
            self._apply_if_due(answer)

    def drop(self, place: int, answer: Callable[[Slot, list[int]], None]) -> None:
        """Nobody waits for this worker any longer; what it pushed in full stays."""
        with self.lock:
            self.holding.pop(place, None)
            self._apply_if_due(answer)

    def _apply_if_due(self, answer: Callable[[Slot, list[int]], None]) -> None:
        awaited = [version for place, version in self.holding.items() if place not in self.pending]
        if not self.pending or any(self._too_stale(version) for version in awaited):
            return
        places = sorted(self.pending)
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
        """Synchronous workers have weighted their gradients by their samples already."""
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
