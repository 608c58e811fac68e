"""Workload: model, data, loss and optimizer, with shared losses and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data, DataRequest


@dataclass(frozen=True)
class Workload:
    """Model, data, loss and optimizer to train; a user's `file.py:function` may return one."""

    name: str
    """Name with options as the user wrote it, for example 'unet:width=16'."""
    model: Callable[[], nn.Module]
    """Function that creates a newly initialised model on the default device.

    The model takes one tensor and returns one tensor. The caller seeds torch first.
    """
    data: Callable[[DataRequest], Data]
    """Function that loads or generates the data."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Function (outputs, targets) -> **mean** loss of the batch; strategies weight it by sample counts."""
    input_shape: tuple[int, ...]
    """Shape of one input sample, without the batch dimension."""
    input_dtype: torch.dtype = torch.float32
    accuracy: Callable[[Tensor, Tensor], Tensor] | None = None
    """Function (outputs, targets) -> fraction of correct samples as a scalar; None if not applicable."""
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """Function model -> list of its modules, each of which takes the output of the one before.

    The model can then be split between any two. Not needed for an nn.Sequential.
    """
    not_trainable: str = ""
    """Sentence why the workload can be described and advised on, but not trained; empty: it can be trained."""

    def example(self, batch: int, device: str | torch.device = "cpu") -> Tensor:
        """Return a batch of zeros with the model's input shape, for counting and tracing."""
        return torch.zeros((batch, *self.input_shape), dtype=self.input_dtype, device=device)


def one_tensor(name: str, outputs: Any) -> Tensor:
    """Return the output if it is a tensor; raise UserError otherwise."""
    if isinstance(outputs, Tensor):
        return outputs
    raise not_one_tensor(name, type(outputs).__name__)


def not_one_tensor(name: str, kind: str) -> UserError:
    return UserError(f"the model of '{name}' returns {kind}, not one tensor; return what the loss needs in one tensor")


def classification_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy loss. Dimensions of size 1 are ignored, such as [batch, 1, 10] from the study's linear model."""
    return functional.cross_entropy(outputs.flatten(1), targets)


def classification_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1).argmax(1) == targets).float().mean()
