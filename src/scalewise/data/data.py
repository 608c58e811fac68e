"""The samples of a workload, decoded into tensors or read one by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True)
class DataRequest:
    """What the user asked for: where the data lies, how much of it, and the seed for what is generated."""

    folder: Path | None = None
    """`--data`: a folder or file; None means the environment, the cache, or generated samples."""
    samples: int | None = None
    """`--samples`: use only so many of those found, or make so many."""
    seed: int = 0


@dataclass(frozen=True)
class Data:
    """Samples and where they came from. At least one of `tensors` and `items` is there."""

    source: str
    """Said in every output: 'synthetic speech', '2,000 recordings in DIR'."""
    tensors: tuple[Tensor, Tensor] | None = None
    """All inputs and all targets, first dimension the sample."""
    items: Dataset[Any] | None = None
    """The same samples read (and decoded) one at a time, as `--load files` does."""

    def __len__(self) -> int:
        if self.tensors is not None:
            return len(self.tensors[0])
        return len(self.items)  # type: ignore[arg-type]

    def example(self) -> tuple[Tensor, Tensor]:
        """The first sample, for shapes and types."""
        if self.tensors is not None:
            return self.tensors[0][0], self.tensors[1][0]
        inputs, targets = self.items[0]  # type: ignore[index]
        return torch.as_tensor(inputs), torch.as_tensor(targets)
