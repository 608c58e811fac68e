"""What is trained: a model, its data, its loss and the optimizer it is trained with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalewise.data.data import Data, DataRequest


@dataclass(frozen=True)
class Workload:
    """Everything a strategy needs to train something; `file.py:function` may return one."""

    name: str
    """As the user wrote it, with its options: 'unet:width=16'."""
    model: Callable[[], nn.Module]
    """Makes a freshly initialised model on the current default device, which takes one tensor and gives one; the
    caller seeds torch first."""
    data: Callable[[DataRequest], Data]
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> the **mean** over the samples of the batch: strategies weight it by sample counts."""
    input_shape: tuple[int, ...]
    """One sample, without the batch dimension."""
    input_dtype: torch.dtype = torch.float32
    accuracy: Callable[[Tensor, Tensor], Tensor] | None = None
    """(outputs, targets) -> the mean fraction correct over the samples, as a scalar; None where it means nothing."""
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """The model -> its modules in a row, each called with what the one before gives, so that it can be cut between any
    two; the elements of an nn.Sequential need not be told."""

    def example(self, batch: int, device: str | torch.device = "cpu") -> Tensor:
        """A batch of zeros of the shape that the model takes, for counting and tracing."""
        return torch.zeros((batch, *self.input_shape), dtype=self.input_dtype, device=device)
