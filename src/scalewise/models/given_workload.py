"""Workloads as the Python functions take them: a name, a Workload, or an nn.Module with the shape of its input."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from scalewise.core.arguments import shown
from scalewise.core.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from scalewise.models.workload import Workload


def shape_text(input_shape: str | Sequence[int] | None) -> str | None:
    """Return the shape (3, 224, 224) as '3x224x224'."""
    return input_shape if input_shape is None or isinstance(input_shape, str) else "x".join(map(str, input_shape))


def given_workload(
    workload: str | Workload | nn.Module, input_shape: str | Sequence[int] | None, classes: int | None
) -> tuple[str | Workload, str | None, int | None]:
    """Return a workload with the input shape (as text) and classes that its name still needs.

    An nn.Module becomes a Workload that trains a copy of the module, from its present weights, as a classifier on
    generated inputs.
    """
    shape = shape_text(input_shape)
    if isinstance(workload, str):
        return workload, shape, classes
    if is_module(workload):
        return module_workload(workload, shape, classes), None, None
    if not _is_workload(workload):
        hint = "; call it, so that it returns a model" if callable(workload) else ""
        raise UserError(
            f"the workload is {shown(workload)}; it must be a name, a torch.nn.Module or a scalewise.Workload{hint}"
        )
    if shape is not None or classes is not None:
        raise UserError(
            f"'{workload.name}' is a Workload, which defines its own input shape and classes; "
            "leave out --input and --classes"
        )
    return workload, None, None


def is_module(workload: object) -> TypeGuard[nn.Module]:
    """Whether the workload is an nn.Module. Torch is not imported: without it there are no modules."""
    torch: Any = sys.modules.get("torch.nn")
    return torch is not None and isinstance(workload, torch.Module)


def _is_workload(workload: object) -> TypeGuard[Workload]:
    module: Any = sys.modules.get("scalewise.models.workload")  # imports torch
    return module is not None and isinstance(workload, module.Workload)


def module_workload(module: nn.Module, input_shape: str | None, classes: int | None) -> Workload:
    """Return a workload that trains copies of the module; without `classes` the size of its output is taken."""
    from scalewise.models.resolve import classifier

    name = type(module).__name__
    if input_shape is None:
        raise UserError(f"'{name}' is an nn.Module; give its input shape, as in input_shape=(3, 224, 224)")
    return classifier(name, partial(_copy_of, module), input_shape, classes)


def _copy_of(module: nn.Module) -> nn.Module:
    """Copy a module to the default device without gradients; fake tensors and those on the meta device have no data."""
    import torch
    from torch._subclasses import FakeTensor

    copies: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        duplicate = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        if not (duplicate.is_meta or isinstance(duplicate, FakeTensor)):
            duplicate.copy_(tensor.detach())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        copies[id(tensor)] = torch.nn.Parameter(duplicate, tensor.requires_grad) if is_parameter else duplicate
    return copy.deepcopy(module, copies)
