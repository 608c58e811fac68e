"""Layers cut over devices: parallel styles for torch's `parallelize_module`, whose sums are DTensor's.

columns  x ------- copy ---+-- F.linear(x, columns of W) -- some of y        backward: gradients of x are added up
rows     some of x --------+-- F.linear(x, rows of W) -- sum -- y            the first part alone adds the bias

What columns put out goes on as an ordinary tensor of fewer features, through element-wise functions or whole attention
heads, into rows. Random numbers that are drawn on the way (dropout) are every part's own; all others are the same for
all.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from scalewise.data.data import Data
from scalewise.engines.cut_trial import draws_in_parts
from scalewise.engines.own_draws import OwnDraws
from scalewise.engines.parts import Pieces
from scalewise.errors import UserError
from scalewise.step.clock import Clock
from scalewise.strategies.cuts import Cut
from scalewise.workloads.workload import Workload


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

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Nothing is added up meanwhile."""
        mesh, self.mesh = self.mesh, None
        try:
            yield
        finally:
            self.mesh = mesh


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

    def __init__(self, cut: Cut, part: int, entrance: Entrance, draws: OwnDraws | None) -> None:
        """`draws` where behind this layer every part begins to draw its own."""
        self.cut, self.part, self.entrance, self.draws = cut, part, entrance, draws

    def _apply(self, module: nn.Module, _: DeviceMesh) -> nn.Module:
        _keep(module, "weight", Pieces(0, self.cut.sizes), self.part)
        if module.bias is not None:
            _keep(module, "bias", Pieces(0, self.cut.sizes), self.part)
        module.register_forward_pre_hook(lambda _, inputs: (self.entrance.copy(inputs[0]), *inputs[1:]))
        if draws := self.draws:
            module.register_forward_hook(lambda module, *_: draws.begin() if module.training else None)
        return module


class Rows(ParallelStyle):
    """Takes in some of what a layer needs, and adds up."""

    def __init__(self, cut: Cut, part: int, sums: Sums, draws: OwnDraws) -> None:
        self.cut, self.part, self.sums, self.draws = cut, part, sums, draws

    def _apply(self, module: nn.Module, _: DeviceMesh) -> nn.Module:
        _keep(module, "weight", Pieces(1, self.cut.sizes), self.part)
        if self.part:
            module.register_parameter("bias", None)
        module.register_forward_hook(self._added_up)
        return module

    def _added_up(self, _: nn.Module, __: Any, outputs: Tensor) -> Tensor:
        self.draws.end()
        total: Tensor = _Sum.apply(outputs, self.sums)  # type: ignore[no-untyped-call]
        return total


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


def cut_layers(
    model: nn.Module,
    cuts: Mapping[str, Cut],
    part: int,
    mesh: DeviceMesh,
    clock: Clock,
    drawing: Collection[str],
    device: torch.device,
) -> Sums:
    """In place: this part of every layer named in `cuts`; behind those in `drawing` each draws its own numbers."""
    sums = Sums(mesh, clock)
    parallelize_module(model, mesh, _styles(cuts, part, sums, drawing, device))
    return sums


def drawing_layers(workload: Workload, data: Data, cuts: Mapping[str, Cut], clock: Clock) -> frozenset[str]:
    """Tried with the first part."""

    def apply(model: nn.Module) -> None:
        for name, style in _styles(cuts, 0, Sums(None, clock), (), torch.device("cpu")).items():
            style._apply(model.get_submodule(name), None)  # type: ignore[arg-type]

    return draws_in_parts(workload, data, cuts, apply)


def _styles(
    cuts: Mapping[str, Cut], part: int, sums: Sums, drawing: Collection[str], device: torch.device
) -> dict[str, ParallelStyle]:
    entrance, draws = Entrance(sums), OwnDraws(part, device)
    return {
        name: Columns(cut, part, entrance, draws if name in drawing else None)
        if cut.role == "columns"
        else Rows(cut, part, sums, draws)
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
