"""Buffers that a model changes in forward, which only some ways of cutting it keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Changed:
    name: str
    forgotten: bool
    """Another tensor with other numbers took its place, which an export does not keep."""

    @property
    def owner(self) -> str:
        """The module that holds it; empty: the model itself."""
        return self.name.rpartition(".")[0]


@contextmanager
def watched_buffers(model: nn.Module) -> Iterator[list[Changed]]:
    """Filled at the end with those that were changed."""
    before = [(name, buffer, buffer._version, buffer.clone()) for name, buffer in model.named_buffers()]
    changed: list[Changed] = []
    yield changed
    after = dict(model.named_buffers())
    for name, buffer, version, value in before:
        now = after.get(name)
        if now is not buffer or buffer._version != version:
            forgotten = now is not buffer and not (now is not None and torch.equal(now, value))
            changed.append(Changed(name, forgotten))
