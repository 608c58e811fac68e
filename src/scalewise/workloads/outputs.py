"""What a model gives: one tensor, which its loss is computed from and devices hand to each other."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from scalewise.errors import UserError


def one_tensor(name: str, outputs: Any) -> Tensor:
    """That, or a refusal."""
    if isinstance(outputs, Tensor):
        return outputs
    raise gives_otherwise(name, type(outputs).__name__)


def gives_otherwise(name: str, kind: str) -> UserError:
    return UserError(
        f"the model of '{name}' gives {kind}, not one tensor; let its forward return what the loss needs, in one tensor"
    )
