"""Inputs for models that come without data: noise around a pattern per class, so that there is something to learn."""

from __future__ import annotations

import math

import torch

from scalewise.data.data import Data, DataRequest
from scalewise.data.samples import samples_to_make
from scalewise.errors import UserError

SAMPLES = 2_000
MOST_BYTES = 256 * 2**20
SOURCE = "generated inputs"


def refuse_folder(request: DataRequest, what: str) -> None:
    if request.folder is not None:
        raise UserError(f"--data '{request.folder}' is given, but {what} takes generated inputs only")


def load_generated(request: DataRequest, input_shape: tuple[int, ...], classes: int) -> Data:
    """Standard normal noise plus half of its class's pattern; classes take turns."""
    refuse_folder(request, "an nn.Module without a Workload")
    fitting = MOST_BYTES // (4 * math.prod(input_shape))
    count = samples_to_make(request, min(SAMPLES, max(64, fitting)))
    random = torch.Generator().manual_seed(request.seed)
    labels = torch.arange(count) % classes
    patterns = torch.randn(classes, *input_shape, generator=random)
    inputs = torch.randn(count, *input_shape, generator=random).add_(patterns[labels], alpha=0.5)
    return Data(SOURCE, (inputs, labels))


def load_tokens(request: DataRequest, context: int, vocabulary: int, shift: int) -> Data:
    """Runs of counting tokens; the target of each is the token `shift` places on."""
    refuse_folder(request, "a model of the zoo")
    count = samples_to_make(request, SAMPLES)
    random = torch.Generator().manual_seed(request.seed)
    starts = torch.randint(vocabulary, (count, 1), generator=random)
    tokens = (starts + torch.arange(context + 1)) % vocabulary
    return Data(SOURCE, (tokens[:, :context].contiguous(), tokens[:, shift : context + shift].contiguous()))
