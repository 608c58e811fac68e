"""Training accuracy, after training."""

from __future__ import annotations

import torch
from torch import nn

from scalewise.step.feed import Feed
from scalewise.workloads.workload import Workload


@torch.no_grad()
def accuracy_of(model: nn.Module, workload: Workload, feed: Feed, samples: int, batch: int) -> float | None:
    """Fraction correct over the first `samples` samples; None where the workload has no such thing."""
    if workload.accuracy is None:
        return None
    model.eval()
    rows = list(torch.arange(samples).split(batch))
    correct = 0.0
    for part, (inputs, targets) in zip(rows, feed.batches(rows), strict=True):
        correct += float(workload.accuracy(model(inputs), targets)) * len(part)
    model.train()
    return correct / samples
