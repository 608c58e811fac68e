"""Footprint of a workload: the bytes and flops of its parts that plans need."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.data.dataset import Data
from scalewise.models.chain import WEIGHED, chain_of, example_of, measure_parts
from scalewise.models.parameters import allow_one_sample
from scalewise.models.workload import Workload, one_tensor
from scalewise.strategies.plan import Footprint, FrozenParameter, Section, SplittableLayer, units_of

ROLES = ("columns", "rows")
SPLITTABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh,
    nn.Softplus, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Identity,
)  # fmt: skip
CHANNELWISE = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
)  # fmt: skip
"""Layers that act on channels independently, which may lie between split convolutions."""


@dataclass(frozen=True)
class SplitRole:
    """How a layer is split by tensor parallelism."""

    kind: Literal["columns", "rows"]
    group: str
    """Name of the group of column and row layers that belong together."""
    unit: int = 1
    """Number of columns that must stay on one device (the head width)."""


def is_splittable(module: nn.Module) -> bool:
    return isinstance(module, SPLITTABLE) and getattr(module, "groups", 1) == 1


def roles_of(model: nn.Module) -> dict[str, SplitRole]:
    """Return how layers are split, by name.

    A module declares `tensor_parallel = {"query": "columns", ..., "output": "rows"}` and, for attention heads,
    `head_width`. In an nn.Sequential, layers with only element-wise functions between them are paired.
    """
    roles: dict[str, SplitRole] = {}
    for path, module in model.named_modules():
        if declared := getattr(type(module), "tensor_parallel", None):
            unit = getattr(module, "head_width", 1)
            roles |= {_join(path, name): SplitRole(kind, path, unit) for name, kind in declared.items()}
        elif isinstance(module, nn.Sequential):
            for first, second in _pairs(module):
                group = _join(path, first)
                roles |= {group: SplitRole("columns", group), _join(path, second): SplitRole("rows", group)}
    return roles


def refuse_misnamed(model: nn.Module) -> None:
    """Raise UserError if a `tensor_parallel` names unknown layers or roles."""
    for module in model.modules():
        kind = type(module).__name__
        layers = dict(module.named_modules())
        for name, role in (getattr(type(module), "tensor_parallel", None) or {}).items():
            if name not in layers:
                valid = [path for path, layer in layers.items() if path and is_splittable(layer)]
                raise unknown(f"layer in the tensor_parallel of {kind}:", name, valid)
            if role not in ROLES:
                raise unknown(f"role of '{name}' in the tensor_parallel of {kind}:", role, ROLES)


def is_declared_by_user(model: nn.Module) -> bool:
    """Return whether user code declares `tensor_parallel`, which unlike built-in models must be verified."""
    kinds = {type(module) for module in model.modules()}
    return any(hasattr(kind, "tensor_parallel") and not kind.__module__.startswith("scalewise.") for kind in kinds)


def _pairs(sequence: nn.Sequential) -> Iterator[tuple[str, str]]:
    """Yield the names of column and row layers that follow each other."""
    first: tuple[str, nn.Module] | None = None
    for name, module in sequence.named_children():
        if is_splittable(module):
            if first and isinstance(module, type(first[1])):
                yield first[0], name
                first = None
            else:
                first = name, module
        elif first and not isinstance(module, ELEMENTWISE):
            keeps_channels = isinstance(module, CHANNELWISE) and not isinstance(first[1], nn.Linear)
            first = first if keeps_channels else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class CallRecorder(ExitStack):
    """Record the calls of a model's linear and convolutional layers for one sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules = {name: module for name, module in model.named_modules() if is_splittable(module)}
        self.roles = roles_of(model)
        self.layers: list[SplittableLayer] = []
        self.last_input: weakref.ref[Tensor] | None = None
        self.source = -1

    def __enter__(self) -> CallRecorder:
        for name, module in self.modules.items():
            self.callback(module.register_forward_hook(self._hook(name)).remove)
        return self

    def _hook(self, name: str) -> Any:
        role = self.roles.get(name)

        def called(module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            layer_input = inputs[0]
            if self.last_input is None or self.last_input() is not layer_input:
                self.last_input = weakref.ref(layer_input)
                self.source += 1
            layer = _splittable_layer(name, module, role)
            self.layers.append(
                replace(
                    layer,
                    source=self.source,
                    input_bytes=layer_input.nbytes,
                    output_bytes=outputs.nbytes,
                    input_learns=layer_input.requires_grad,
                    flops=2 * module.weight.numel() * outputs.numel() // layer.columns,  # type: ignore[operator]
                )
            )

        return called


def splittable_layers_of(model: nn.Module) -> list[SplittableLayer]:
    """Return all splittable layers with their sizes and roles, without running the model."""
    roles = roles_of(model)
    layers = [(name, module) for name, module in model.named_modules() if is_splittable(module)]
    return [_splittable_layer(name, module, roles.get(name)) for name, module in layers]


def _splittable_layer(name: str, module: nn.Module, role: SplitRole | None) -> SplittableLayer:
    columns, rows = module.weight.shape[:2]  # type: ignore[index]
    if role is None:
        return SplittableLayer(name, "", "", columns, rows)
    return SplittableLayer(name, role.kind, role.group, columns, rows, role.unit)


def footprint_of(workload: Workload, data: Data) -> Footprint:
    """Measure one sample in a new model, on the meta device if the model can run there, else on the CPU."""
    try:
        return _footprint_on("meta", workload, data)
    except Exception:  # the model may need real numbers; if it fails on the CPU too, that error is raised
        with torch.random.fork_rng(devices=[]):
            return _footprint_on("cpu", workload, data)


def norms_batches(model: nn.Module) -> bool:
    """Return whether the model has a batch norm layer."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _footprint_on(device: str, workload: Workload, data: Data) -> Footprint:
    with torch.device(device):
        model = workload.model()
    allow_one_sample(model)
    ready: list[Tensor] = []
    hooks = [
        parameter.register_post_accumulate_grad_hook(ready.append)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    called: set[str] = set()
    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, path=path: called.add(path))
    inputs, targets = data.example()
    saved: set[int] = set()
    with (
        CallRecorder(model) as calls,
        saved_tensors_hooks(lambda tensor: _record_storage(tensor, saved), lambda tensor: tensor),
    ):
        outputs = model(inputs.unsqueeze(0).to(device))
    one_tensor(workload.name, outputs).float().sum().backward()
    for hook in hooks:
        hook.remove()  # the garbage collector does not see hooks, which would keep the model in memory
    return Footprint(
        parameter_bytes=tuple(parameter.nbytes for parameter in ready),
        parameter_shapes=tuple(tuple(parameter.shape) for parameter in ready),
        input_bytes=inputs.nbytes,
        target_bytes=targets.nbytes,
        output_bytes=outputs.nbytes,
        read_again=tuple(_storage(parameter) in saved for parameter in ready),
        parameter_names=tuple(names[parameter] for parameter in ready),
        matrices=tuple(calls.layers),
        norms_batches=norms_batches(model),
        sections=_sections(workload, model, data, device),
        frozen=tuple(_frozen_parameters(model, [names[parameter] for parameter in reversed(ready)], called)),
    )


def _frozen_parameters(model: nn.Module, trained: list[str], called: set[str]) -> Iterator[FrozenParameter]:
    """Yield frozen parameters in the order of use, each with the trained parameter that follows it."""
    parameters = dict(model.named_parameters())
    unit_of = {
        name: unit for unit, at in units_of(list(parameters)).items() for name in (list(parameters)[i] for i in at)
    }
    frozen: list[FrozenParameter] = []
    following = len(trained)
    for name, parameter in reversed(parameters.items()):
        if name in trained:
            following = trained.index(name)
        elif unit_of[name] in called or not unit_of[name]:
            frozen.append(FrozenParameter(name, parameter.nbytes, tuple(parameter.shape), following))
    frozen.reverse()
    yield from sorted(frozen, key=lambda parameter: parameter.after)


def _sections(workload: Workload, model: nn.Module, data: Data, device: str) -> tuple[Section, ...]:
    try:
        return measure_parts(chain_of(workload, model), example_of(data, WEIGHED, device))[0]
    except UserError:  # raised again by strategies that split the model
        return ()


def _record_storage(tensor: Tensor, saved: set[int]) -> Tensor:
    """Record the storage of a tensor that autograd saves; a transposed weight has the storage of the weight."""
    if tensor.layout == torch.strided:
        saved.add(_storage(tensor))
    return tensor


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
