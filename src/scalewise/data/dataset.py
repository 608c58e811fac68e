"""Samples of a workload: requests for data, loaded data and generated data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.core.errors import UserError


@dataclass(frozen=True)
class DataRequest:
    """Request for data: its location, the number of samples and the seed of generated samples."""

    folder: Path | None = None
    """Folder or file given by `--data`; None to use the environment variable, the cache, or generated samples."""
    samples: int | None = None
    """Number of samples to use or to generate, given by `--samples`; None for all."""
    seed: int = 0
    """Seed of generated samples."""


@dataclass(frozen=True)
class Data:
    """Samples and their source. At least one of `tensors` and `items` is given."""

    source: str
    """Description that is printed with results, such as 'synthetic speech' or '2,000 recordings in DIR'."""
    tensors: tuple[Tensor, Tensor] | None = None
    """All inputs and all targets; the first dimension is the sample."""
    items: Dataset[Any] | None = None
    """Dataset that reads and decodes one sample at a time, for `--load files`."""

    def __len__(self) -> int:
        if self.tensors is not None:
            return len(self.tensors[0])
        return len(self.items)  # type: ignore[arg-type]

    def example(self) -> tuple[Tensor, Tensor]:
        """Return the first sample, for shapes and types."""
        if self.tensors is not None:
            return self.tensors[0][0], self.tensors[1][0]
        inputs, targets = self.items[0]  # type: ignore[index]
        return torch.as_tensor(inputs), torch.as_tensor(targets)


def samples_to_make(request: DataRequest, default: int) -> int:
    """Return the number of samples to generate."""
    if request.samples is None:
        return default
    if request.samples < 1:
        raise UserError(f"--samples must be at least 1, not {request.samples}")
    return request.samples


def samples_to_use(request: DataRequest, available: int, place: str) -> list[int]:
    """Return the indices of the samples to use, evenly spaced because sorted files are grouped by class."""
    count = samples_to_make(request, available)
    if count > available:
        raise UserError(f"--samples is {count}, but there are only {available} samples in {place}")
    return [index * available // count for index in range(count)]


SAMPLES = 2_000
_MAX_GENERATED_BYTES = 256 * 2**20
SOURCE = "generated inputs"


def refuse_folder(request: DataRequest, what: str) -> None:
    """Raise UserError if `--data` is given for a workload that only generates its samples."""
    if request.folder is not None:
        raise UserError(f"--data '{request.folder}' is given, but {what} takes generated inputs only; leave out --data")


def load_generated(request: DataRequest, input_shape: tuple[int, ...], classes: int) -> Data:
    """Generate inputs: normal noise plus half of a random pattern of the class; successive samples change the class."""
    refuse_folder(request, "an nn.Module without a Workload")
    limit = _MAX_GENERATED_BYTES // (4 * math.prod(input_shape))
    count = samples_to_make(request, min(SAMPLES, max(64, limit)))
    random = torch.Generator().manual_seed(request.seed)
    labels = torch.arange(count) % classes
    patterns = torch.randn(classes, *input_shape, generator=random)
    inputs = torch.randn(count, *input_shape, generator=random).add_(patterns[labels], alpha=0.5)
    return Data(SOURCE, (inputs, labels))


def load_tokens(request: DataRequest, context: int, vocabulary: int, shift: int) -> Data:
    """Generate sequences of consecutive token ids; the target of each token is the token `shift` places later."""
    refuse_folder(request, "a model of the zoo")
    count = samples_to_make(request, SAMPLES)
    random = torch.Generator().manual_seed(request.seed)
    starts = torch.randint(vocabulary, (count, 1), generator=random)
    tokens = (starts + torch.arange(context + 1)) % vocabulary
    return Data(SOURCE, (tokens[:, :context].contiguous(), tokens[:, shift : context + shift].contiguous()))
