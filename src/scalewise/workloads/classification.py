"""The loss and accuracy of every workload that tells classes apart."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def classification_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy; outputs may keep dimensions of one, as the study's linear model does: [batch, 1, 10]."""
    return functional.cross_entropy(outputs.flatten(1), targets)


def classification_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1).argmax(1) == targets).float().mean()
