"""What engines have in common that hold the whole model on every rank."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from scalewise.engines.engine import Job, Read, Whole
from scalewise.step.feed import Batch, Feed


class HoldsWhole:
    """Rank 0 has it all: checkpoints are written and the accuracy is computed there."""

    job: Job
    model: nn.Module
    """The plain module (not a wrapper of it)."""
    optimizer: torch.optim.Optimizer | None
    """None on a rank that does not update."""
    feed: Feed | None

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def stream(self) -> int:
        return self.job.place.rank

    def whole(self) -> Whole | None:
        return None if self.job.place.rank else Whole(self.model, self.optimizer)

    def restore(self, read: Read) -> None:
        read(self.model, self.optimizer)

    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        if self.feed and self.job.place.rank == 0:
            yield from predictions_of(self.model, self.feed, rows)


@torch.no_grad()
def predictions_of(model: nn.Module, feed: Feed, rows: list[Tensor]) -> Iterator[Batch]:
    """(outputs, targets) of each list of rows."""
    model.eval()
    for inputs, targets in feed.batches(rows):
        yield model(inputs), targets
    model.train()
