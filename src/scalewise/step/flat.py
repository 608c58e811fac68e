"""A model's parameters as one stretch of memory: one message instead of one per tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalewise.errors import UserError
from scalewise.step.left_out import is_left_out


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Those that steps change."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad and not is_left_out(parameter)]


def one_kind(parameters: list[nn.Parameter]) -> torch.dtype:
    """Of number, which all parameters must be."""
    kinds = {parameter.dtype for parameter in parameters}
    if not kinds:
        raise UserError("the model has nothing to train: none of its parameters requires a gradient and gets one")
    if len(kinds) != 1:
        raise UserError(f"this strategy sends parameters as one message; the model mixes {sorted(map(str, kinds))}")
    return kinds.pop()


def flatten_parameters(model: nn.Module) -> Tensor:
    """Move the trainable parameters into one tensor that they become views of."""
    parameters = trainable(model)
    one_kind(parameters)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
        parameter.data = view
    return flat


def views_of(flat: Tensor, like: list[nn.Parameter]) -> list[Tensor]:
    """The parts of `flat`, each shaped as its parameter."""
    parts = flat.split([parameter.numel() for parameter in like])
    return [part.view(parameter.shape) for part, parameter in zip(parts, like, strict=True)]
