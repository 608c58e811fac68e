"""Training accuracy, after training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from scalewise.step.feed import Batch
from scalewise.workloads.workload import Workload


def accuracy_of(
    workload: Workload, predictions: Callable[[list[Tensor]], Iterator[Batch]], samples: int, batch: int
) -> float | None:
    """Fraction correct over the first `samples` samples; None where the workload has no such thing.

    None too on ranks that are told no outputs.
    """
    if workload.accuracy is None:
        return None
    correct, seen = 0.0, 0
    for outputs, targets in predictions(list(torch.arange(samples).split(batch))):
        correct += float(workload.accuracy(outputs, targets)) * len(targets)
        seen += len(targets)
    return correct / seen if seen else None
