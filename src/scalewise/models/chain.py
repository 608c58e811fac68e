"""Chain of parts between which a model can be split into stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data
from scalewise.models.inspection import counting
from scalewise.models.workload import Workload
from scalewise.strategies.plan import Section


@contextmanager
def unchanged_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore all buffers afterwards, for example batch norm statistics, which forward changes."""
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


BOUNDARY_RULE = "each part of a model that is split must return a tensor or a tuple of tensors"
WEIGHED = 2
"""Number of samples in a trial run of a chain; with one, any first dimension of size 1 would look like the batch."""


@dataclass(frozen=True)
class Part:
    """Part of a model that is never split."""

    name: str
    module: nn.Module
    path: str
    """Path in the whole model, which is the prefix of its parameter names there."""
    within: str = ""
    """Prefix of the parameter names in `module` that is replaced by `path`."""
    members: tuple[Part, ...] = ()
    """Consecutive parts that cannot be separated; `module` is then an nn.Sequential of their modules."""

    def names(self) -> dict[str, str]:
        """Return names of parameters and buffers: name in `module` -> name in the whole model."""
        if self.members:
            return {
                f"{index}.{local_name}": name
                for index, member in enumerate(self.members)
                for local_name, name in member.names().items()
            }
        prefix = f"{self.path}." if self.path else ""
        return {name: prefix + name.removeprefix(self.within) for name in self.module.state_dict()}


@dataclass(frozen=True)
class PassedTensor:
    """Shape and dtype of a tensor that is passed from one part to the next."""

    shape: tuple[int, ...]
    """Shape of one sample."""
    dtype: torch.dtype
    requires_grad: bool
    """Whether its gradient is passed back."""

    def empty(self, samples: int, device: torch.device | str) -> Tensor:
        return torch.empty((samples, *self.shape), dtype=self.dtype, device=device)

    @property
    def bytes(self) -> int:
        return self.empty(1, "meta").nbytes


@dataclass(frozen=True)
class Boundary:
    """Tensors that a part passes to the next."""

    tensors: tuple[PassedTensor, ...]
    packed: bool
    """Whether the tensors are passed as a tuple, even if there is only one."""

    @property
    def kinds(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shapes and dtypes of the tensors, whether they require gradients or not."""
        return [(tensor.shape, tensor.dtype) for tensor in self.tensors]

    def unpack(self, tensors: Sequence[Tensor]) -> Any:
        return tuple(tensors) if self.packed else tensors[0]


def chain_of(workload: Workload, model: nn.Module) -> tuple[Part, ...]:
    """Return the parts that the workload declares, or the elements of an nn.Sequential; empty for other models."""
    if workload.stages is not None:
        return _declared_parts(workload, model)
    return tuple(_sequential_parts(model, "")) if _is_sequence(model) else ()


def whole_part(model: nn.Module) -> Part:
    """Return the whole model as a single part."""
    return Part(type(model).__name__, model, "")


def example_of(data: Data, samples: int, device: str) -> Tensor:
    inputs, _ = data.example()
    return inputs.to(device).expand(samples, *inputs.shape).contiguous()


def measure_parts(parts: Sequence[Part], inputs: Tensor) -> tuple[tuple[Section, ...], tuple[Boundary, ...]]:
    """Run samples through the parts; return the cost of every part and the tensors that it passes on."""
    measured = measure_chain(parts, inputs)
    return measured.sections, measured.boundaries


@dataclass(frozen=True)
class MeasuredChain:
    """Parts between which a model can be split, with their costs and the tensors that they pass on."""

    parts: tuple[Part, ...]
    sections: tuple[Section, ...]
    boundaries: tuple[Boundary, ...]
    blocked: tuple[tuple[str, UserError], ...]
    """Names of parts that cannot be separated from the part before, each with the reason."""


def measure_chain(parts: Sequence[Part], inputs: Tensor) -> MeasuredChain:
    """Run samples through the parts and measure them; join parts whose result cannot be sent with the next part."""
    joined: list[Part] = []
    sections: list[Section] = []
    boundaries: list[Boundary] = []
    blocked: list[tuple[str, UserError]] = []
    count = len(inputs)
    saved = _SavedTensors(parts, inputs)
    value: Any = inputs
    buffers_restored = unchanged_buffers(part.module for part in parts)
    group: list[Part] = []
    flops_before = bytes_before = operations_before = 0
    hooks = saved_tensors_hooks(saved.note, lambda tensor: tensor)
    with buffers_restored, counting() as counter, hooks, _OperationCounter() as operations:
        for index, part in enumerate(parts):
            if not group:
                flops_before, bytes_before, operations_before = counter.get_total_flops(), saved.bytes, operations.count
            value = part.module(value)
            operations_after = operations.count
            group.append(part)
            try:
                boundaries.append(_border(part, value, count))
            except UserError as error:
                if index + 1 == len(parts):
                    raise
                blocked.append((parts[index + 1].name, error))
                continue
            joined.append(_join(group))
            new = saved.new_parameters(joined[-1])
            group = []
            sections.append(
                Section(
                    name=joined[-1].name,
                    flops=(counter.get_total_flops() - flops_before) // count,
                    parameter_bytes=sum(parameter.nbytes for parameter in new),
                    kept_bytes=(saved.bytes - bytes_before) // count,
                    passed_bytes=tuple(tensor.bytes for tensor in boundaries[-1].tensors),
                    returned_bytes=tuple(tensor.bytes for tensor in boundaries[-1].tensors if tensor.requires_grad),
                    frozen_bytes=sum(parameter.nbytes for parameter in new if not parameter.requires_grad),
                    operations=operations_after - operations_before,
                )
            )
    return MeasuredChain(tuple(joined), tuple(sections), tuple(boundaries), tuple(blocked))


def join_like(measured: MeasuredChain, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Join the parts of another copy of the model in the same way."""
    remaining = iter(parts)
    return tuple(_join([next(remaining) for _ in part.members or (part,)]) for part in measured.parts)


def _join(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    return Part(parts[0].name, nn.Sequential(*(part.module for part in parts)), parts[0].path, members=tuple(parts))


class _OperationCounter(TorchDispatchMode):
    """Count the operations that a device executes; views are free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


class _SavedTensors:
    """Bytes that autograd saves for backward, with every storage counted once."""

    def __init__(self, parts: Sequence[Part], inputs: Tensor) -> None:
        self.bytes = 0
        self.counted: set[nn.Parameter] = set()
        # Referenced, because a freed tensor's address may be reused.
        self.tensors: list[Tensor] = [inputs]
        self.storages = {_storage(inputs)}
        self.storages |= {_storage(parameter) for part in parts for parameter in part.module.parameters()}

    def note(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()  # the graph references the saved tensor: together they would be a cycle
        if tensor.layout == torch.strided and _storage(tensor) not in self.storages:
            self.tensors.append(tensor)
            self.storages.add(_storage(tensor))
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor

    def new_parameters(self, part: Part) -> list[nn.Parameter]:
        """Return the parameters of a part that no earlier part has."""
        new = [parameter for parameter in part.module.parameters() if parameter not in self.counted]
        self.counted.update(new)
        return new


def _border(part: Part, value: Any, count: int) -> Boundary:
    tensors = [value] if isinstance(value, Tensor) else list(value) if isinstance(value, (tuple, list)) else []
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise UserError(
            f"the model cannot be split after '{part.name}', which returns {type(value).__name__}: {BOUNDARY_RULE}"
        )
    for tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != count:
            shape = "x".join(map(str, tensor.shape)) or "a scalar"
            raise UserError(
                f"the model cannot be split after '{part.name}', which returns {shape} for {count} samples: the first "
                "dimension of a tensor between stages must be the batch"
            )
    return Boundary(
        tuple(PassedTensor(tuple(tensor.shape[1:]), tensor.dtype, tensor.requires_grad) for tensor in tensors),
        packed=not isinstance(value, Tensor),
    )


def _declared_parts(workload: Workload, model: nn.Module) -> tuple[Part, ...]:
    assert workload.stages is not None
    paths = {module: path for path, module in model.named_modules()}
    declared = workload.stages(model)
    if not isinstance(declared, Iterable):
        raise UserError(
            f"the stages of '{workload.name}' are a {type(declared).__name__}, not a list; return the model's modules "
            "in the order of their calls, as in stages=lambda model: [model.body, model.head]"
        )
    modules = list(declared)
    for module in modules:
        if not isinstance(module, nn.Module) or module not in paths:
            raise UserError(
                f"the stages of '{workload.name}' contain a {type(module).__name__} that is not a module of the model"
            )
    declared_parameters = {parameter for module in modules for parameter in module.parameters()}
    for name, parameter in model.named_parameters():
        if parameter not in declared_parameters:
            raise UserError(f"the stages of '{workload.name}' leave out '{name}'; add the module that holds it")
    return tuple(Part(paths[module] or type(module).__name__, module, paths[module]) for module in modules)


def _sequential_parts(model: nn.Module, path: str) -> Iterator[Part]:
    for name, child in model._modules.items():
        assert child is not None
        if _is_sequence(child):
            yield from _sequential_parts(child, f"{path}{name}.")
        else:
            yield Part(f"{path}{name}", child, f"{path}{name}")


def _is_sequence(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module) > 0


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
