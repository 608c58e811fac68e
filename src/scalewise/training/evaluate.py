"""Training accuracy, after training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from scalewise.step.feed import Batch
from scalewise.workloads.workload import Workload


def accuracy_of(
    workload: Workload,
    predictions: Callable[[list[Tensor]], Iterator[Batch]],
    samples: int,
    batch: int,
    got_on: Callable[[], None],
) -> float | None:
    """Fraction correct over the first `samples` samples; None where the workload has no such thing.

    None too on ranks that are told no outputs. `got_on` is called after each batch: the other ranks may be through, and
    one that neither finishes nor reports is taken for hung.
    """
    if workload.accuracy is None:
        return None
    correct, seen = 0.0, 0
    for outputs, targets in predictions(list(torch.arange(samples).split(batch))):
        correct += float(workload.accuracy(outputs, targets)) * len(targets)
        seen += len(targets)
        got_on()
    return correct / seen if seen else None
