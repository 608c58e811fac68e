"""Layers cut over devices: parallel styles for torch's `parallelize_module`, whose sums are DTensor's.

columns  x ------- copy ---+-- F.linear(x, columns of W) -- some of y        backward: gradients of x are added up
rows     some of x --------+-- F.linear(x, rows of W) -- sum -- y            the first part alone adds the bias

What columns put out goes on as an ordinary tensor of fewer features, through element-wise functions or whole attention
heads, into rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from scalewise.engines.parts import Pieces
from scalewise.errors import UserError
from scalewise.step.clock import Clock
from scalewise.strategies.cuts import Cut
from scalewise.workloads.workload import Workload

_RULE = "what layers in columns= put out must go, through element-wise functions or whole heads, into layers in rows="


class Sums:
    """Adds up tensors over the devices that share a model, and tells the clock."""

    def __init__(self, mesh: DeviceMesh | None, clock: Clock) -> None:
        self.mesh = mesh if mesh and mesh.size() > 1 else None
        self.clock = clock

    def add(self, tensor: Tensor, phase: str) -> Tensor:
        """`phase` is what the device did until now."""
        if self.mesh is None:
            return tensor
        self.clock.lap(phase)
        total = DTensor.from_local(tensor.contiguous(), self.mesh, [Partial()], run_check=False).full_tensor()
        self.clock.lap("reduce")
        return total


class _Copy(torch.autograd.Function):
    """The same tensor to every part; each part's gradient is one summand."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, entrance: Entrance) -> Tensor:
        ctx.entrance = entrance
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.entrance.last = None
        return ctx.entrance.sums.add(gradient, "backward"), None


class _Sum(torch.autograd.Function):
    """The sum of every part's tensor, to all; its gradient is every part's. No view: a layer that works in place may
    follow."""

    @staticmethod
    def forward(_: Any, tensor: Tensor, sums: Sums) -> Tensor:
        return sums.add(tensor, "forward").detach()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Columns(ParallelStyle):
    """Keeps some of what a layer puts out. Layers that take in the same tensor share its gradient's sum."""

    def __init__(self, cut: Cut, part: int, entrance: Entrance) -> None:
        self.cut, self.part, self.entrance = cut, part, entrance

    def _apply(self, module: nn.Module, _: DeviceMesh) -> nn.Module:
        _keep(module, "weight", Pieces(0, self.cut.sizes), self.part)
        if module.bias is not None:
            _keep(module, "bias", Pieces(0, self.cut.sizes), self.part)
        module.register_forward_pre_hook(lambda _, inputs: (self.entrance.copy(inputs[0]), *inputs[1:]))
        return module


class Rows(ParallelStyle):
    """Takes in some of what a layer needs, and adds up."""

    def __init__(self, cut: Cut, part: int, sums: Sums) -> None:
        self.cut, self.part, self.sums = cut, part, sums

    def _apply(self, module: nn.Module, _: DeviceMesh) -> nn.Module:
        _keep(module, "weight", Pieces(1, self.cut.sizes), self.part)
        if self.part:
            module.register_parameter("bias", None)
        module.register_forward_hook(lambda _module, _inputs, outputs: _Sum.apply(outputs, self.sums))  # type: ignore[no-untyped-call]
        return module


class Entrance:
    """Where tensors enter the cut layers; one that enters several in a row (query, key, value) is copied once."""

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.last: tuple[weakref.ref[Tensor], Tensor] | None = None
        """Forgotten in backward: it would keep memory from being used again."""

    def copy(self, tensor: Tensor) -> Tensor:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        if self.last is None or self.last[0]() is not tensor:
            self.last = weakref.ref(tensor), _Copy.apply(tensor, self)  # type: ignore[no-untyped-call]
        return self.last[1]


def cut_layers(model: nn.Module, cuts: Mapping[str, Cut], part: int, mesh: DeviceMesh, clock: Clock) -> None:
    """In place: this part of every layer named in `cuts`."""
    parallelize_module(model, mesh, _styles(cuts, part, Sums(mesh, clock)))


def refuse_if_it_fails(workload: Workload, cuts: Mapping[str, Cut], clock: Clock) -> None:
    """One sample through the first part, without numbers; not found out for a model that cannot run without."""
    with torch.device("meta"):
        model = workload.model()
    example = workload.example(1, "meta")
    try:
        expected = model(example).shape
    except Exception:  # whatever a model does with real numbers only
        return
    for name, style in _styles(cuts, 0, Sums(None, clock)).items():
        style._apply(model.get_submodule(name), None)  # type: ignore[arg-type]
    try:
        found = model(example).shape
    except Exception as error:  # whatever the model says to tensors of other sizes
        raise UserError(f"tensor: with these layers cut the model fails ({error}); {_RULE}") from error
    if found != expected:
        raise UserError(
            f"tensor: with these layers cut the model puts out {tuple(found)} instead of {tuple(expected)}; {_RULE}"
        )


def _styles(cuts: Mapping[str, Cut], part: int, sums: Sums) -> dict[str, ParallelStyle]:
    entrance = Entrance(sums)
    return {
        name: Columns(cut, part, entrance) if cut.role == "columns" else Rows(cut, part, sums)
        for name, cut in cuts.items()
    }


def pieces_of(model: nn.Module, cuts: Mapping[str, Cut]) -> dict[str, Pieces]:
    """How every parameter of a whole model lies over the parts."""
    pieces = {}
    for name, _ in model.named_parameters():
        layer, _, kind = name.rpartition(".")
        cut = cuts.get(layer)
        if cut and cut.role == "columns":
            pieces[name] = Pieces(0, cut.sizes)
        elif cut and kind == "weight":
            pieces[name] = Pieces(1, cut.sizes)
        else:
            pieces[name] = Pieces()
    return pieces


def _keep(module: nn.Module, name: str, pieces: Pieces, part: int) -> None:
    whole: nn.Parameter = getattr(module, name)
    setattr(module, name, nn.Parameter(pieces.of(whole.detach(), part).clone(), requires_grad=whole.requires_grad))


def refuse_shared(model: nn.Module, cuts: Mapping[str, Cut]) -> None:
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter, name)
        if first != name and {first.rpartition(".")[0], name.rpartition(".")[0]} & set(cuts):
            raise UserError(f"tensor cannot cut '{name}', which is the same as '{first}'; name other layers to cut")
