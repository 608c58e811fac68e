"""Models that are tried with real samples before they are trained: what they remember of those is put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Batch norm's statistics, say, which forward changes in place or replaces."""
    inside = {inner for module in modules for inner in module.modules()}
    before = [
        (module, name, buffer, buffer.clone())
        for module in inside
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in before:
                module._buffers[name] = buffer.copy_(value)
