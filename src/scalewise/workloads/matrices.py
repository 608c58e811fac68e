"""The layers of a model that can be cut, and how they say they are to be."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from scalewise.plan import Matrix
from scalewise.spec import unknown

WAYS = ("columns", "rows")
CUTTABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BY_ELEMENT = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh,
    nn.Softplus, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Identity,
)  # fmt: skip
BY_CHANNEL = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
)  # fmt: skip
"""Between convolutions, parts of the channels can go through these as well."""


@dataclass(frozen=True)
class Role:
    """What becomes of one layer when its model is cut."""

    kind: Literal["columns", "rows"]
    group: str
    """Of the layers that share what lies between them."""
    unit: int = 1
    """Columns that stay together."""


def can_be_cut(module: nn.Module) -> bool:
    return isinstance(module, CUTTABLE) and getattr(module, "groups", 1) == 1


def roles_of(model: nn.Module) -> dict[str, Role]:
    """A module says it by `tensor_parallel = {"query": "columns", ..., "output": "rows"}` and, for heads, `head_width`.

    In an nn.Sequential, layers that follow each other through element-wise functions only are paired.
    """
    roles: dict[str, Role] = {}
    for path, module in model.named_modules():
        if declared := getattr(type(module), "tensor_parallel", None):
            unit = getattr(module, "head_width", 1)
            roles |= {_join(path, name): Role(kind, path, unit) for name, kind in declared.items()}
        elif isinstance(module, nn.Sequential):
            for first, second in _pairs(module):
                group = _join(path, first)
                roles |= {group: Role("columns", group), _join(path, second): Role("rows", group)}
    return roles


def refuse_misnamed(model: nn.Module) -> None:
    """A `tensor_parallel` of layers that there are not, or of other ways to cut them than there are."""
    for module in model.modules():
        kind = type(module).__name__
        layers = dict(module.named_modules())
        for name, way in (getattr(type(module), "tensor_parallel", None) or {}).items():
            if name not in layers:
                valid = [path for path, layer in layers.items() if path and can_be_cut(layer)]
                raise unknown(f"layer of {kind} in its tensor_parallel:", name, valid)
            if way not in WAYS:
                raise unknown(f"way to cut '{name}' in the tensor_parallel of {kind}:", way, WAYS)


def is_said_by_others(model: nn.Module) -> bool:
    """Whether a module that is none of ours says it: those of ours are known to be right."""
    kinds = {type(module) for module in model.modules()}
    return any(hasattr(kind, "tensor_parallel") and not kind.__module__.startswith("scalewise.") for kind in kinds)


def _pairs(sequence: nn.Sequential) -> Iterator[tuple[str, str]]:
    waiting: tuple[str, nn.Module] | None = None
    for name, module in sequence.named_children():
        if can_be_cut(module):
            if waiting and isinstance(module, type(waiting[1])):
                yield waiting[0], name
                waiting = None
            else:
                waiting = name, module
        elif waiting and not isinstance(module, BY_ELEMENT):
            through = isinstance(module, BY_CHANNEL) and not isinstance(waiting[1], nn.Linear)
            waiting = waiting if through else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class Watch(ExitStack):
    """Follows the calls of one sample through a model's linear and convolutional layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers = {name: module for name, module in model.named_modules() if can_be_cut(module)}
        self.roles = roles_of(model)
        self.matrices: list[Matrix] = []
        self.last: weakref.ref[Tensor] | None = None
        self.source = -1

    def __enter__(self) -> Watch:
        for name, module in self.layers.items():
            self.callback(module.register_forward_hook(self._hook(name)).remove)
        return self

    def _hook(self, name: str) -> Any:
        role = self.roles.get(name)

        def called(module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            taken = inputs[0]
            if self.last is None or self.last() is not taken:
                self.last = weakref.ref(taken)
                self.source += 1
            still = _matrix(name, module, role)
            self.matrices.append(
                replace(
                    still,
                    source=self.source,
                    input_bytes=taken.nbytes,
                    output_bytes=outputs.nbytes,
                    input_learns=taken.requires_grad,
                    flops=2 * module.weight.numel() * outputs.numel() // still.columns,  # type: ignore[operator]
                )
            )

        return called


def matrices_of(model: nn.Module) -> list[Matrix]:
    """All that the model has, without a call: how large they are and how they are to be cut, not what goes through."""
    roles = roles_of(model)
    layers = [(name, module) for name, module in model.named_modules() if can_be_cut(module)]
    return [_matrix(name, module, roles.get(name)) for name, module in layers]


def _matrix(name: str, module: nn.Module, role: Role | None) -> Matrix:
    columns, rows = module.weight.shape[:2]  # type: ignore[index]
    if role is None:
        return Matrix(name, "", "", columns, rows)
    return Matrix(name, role.kind, role.group, columns, rows, role.unit)
