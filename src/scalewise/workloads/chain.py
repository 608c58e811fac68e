"""A model as a chain of parts, each called with what the one before gives: between them it can be cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.plan import Section
from scalewise.workloads.count import counting
from scalewise.workloads.unchanged import unchanged_buffers
from scalewise.workloads.workload import Workload

EXPLAINED = "a part of a model that is to be cut gives a tensor, or a tuple of tensors, to the next"
WEIGHED = 2
"""Samples that are sent through a chain to see what it passes on: with one, any first dimension of 1 looks like it."""


@dataclass(frozen=True)
class Part:
    """What is never cut."""

    name: str
    module: nn.Module
    path: str
    """Within the whole model: its parameters' names begin with it."""
    within: str = ""
    """What they begin with here."""
    members: tuple[Part, ...] = ()
    """Of several in a row between which there is no cut; `module` is then an nn.Sequential of theirs."""

    def names(self) -> dict[str, str]:
        """Of parameters and buffers: here -> in the whole model."""
        if self.members:
            each = [(at, member.names()) for at, member in enumerate(self.members)]
            return {f"{at}.{here}": there for at, names in each for here, there in names.items()}
        prefix = f"{self.path}." if self.path else ""
        return {name: prefix + name.removeprefix(self.within) for name in self.module.state_dict()}


@dataclass(frozen=True)
class Passed:
    """A tensor between two parts."""

    shape: tuple[int, ...]
    """Of one sample."""
    dtype: torch.dtype
    learns: bool
    """Whether a gradient comes back."""

    def empty(self, samples: int, device: torch.device | str) -> Tensor:
        return torch.empty((samples, *self.shape), dtype=self.dtype, device=device)

    @property
    def bytes(self) -> int:
        return self.empty(1, "meta").nbytes


@dataclass(frozen=True)
class Border:
    """What a part hands to the next."""

    tensors: tuple[Passed, ...]
    packed: bool
    """In a tuple, also where it is only one."""

    @property
    def kinds(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Of its tensors, whether gradients come back or not."""
        return [(each.shape, each.dtype) for each in self.tensors]

    def unpack(self, tensors: Sequence[Tensor]) -> Any:
        return tuple(tensors) if self.packed else tensors[0]


def chain_of(workload: Workload, model: nn.Module) -> tuple[Part, ...]:
    """As the workload says, or the elements of an nn.Sequential; nothing where neither tells."""
    if workload.stages is not None:
        return _declared(workload, model)
    return tuple(_elements(model, "")) if _is_sequence(model) else ()


def whole_part(model: nn.Module) -> Part:
    """All of it, not to be cut."""
    return Part(type(model).__name__, model, "")


def example_of(data: Data, samples: int, device: str) -> Tensor:
    inputs, _ = data.example()
    return inputs.to(device).expand(samples, *inputs.shape).contiguous()


def weigh(parts: Sequence[Part], inputs: Tensor) -> tuple[tuple[Section, ...], tuple[Border, ...]]:
    """Send samples through: what every part costs and keeps, and what it hands on."""
    weighed = chain_through(parts, inputs)
    return weighed.sections, weighed.borders


@dataclass(frozen=True)
class Weighed:
    """Parts between which a model can be cut."""

    parts: tuple[Part, ...]
    sections: tuple[Section, ...]
    borders: tuple[Border, ...]
    blocked: tuple[tuple[str, UserError], ...]
    """Parts that are in one with the one before, by name, and why."""


def chain_through(parts: Sequence[Part], inputs: Tensor) -> Weighed:
    """Those whose result cannot cross a cut are joined with the next."""
    joined: list[Part] = []
    sections: list[Section] = []
    borders: list[Border] = []
    blocked: list[tuple[str, UserError]] = []
    count = len(inputs)
    seen = _Kept(parts, inputs)
    value: Any = inputs
    tried = unchanged_buffers(part.module for part in parts)
    together: list[Part] = []
    before = kept = begun = 0
    hooks = saved_tensors_hooks(seen.note, lambda tensor: tensor)
    with tried, counting() as counter, hooks, _Operations() as operations:
        for at, part in enumerate(parts):
            if not together:
                before, kept, begun = counter.get_total_flops(), seen.bytes, operations.count
            value = part.module(value)
            done = operations.count
            together.append(part)
            try:
                borders.append(_border(part, value, count))
            except UserError as error:
                if at + 1 == len(parts):
                    raise
                blocked.append((parts[at + 1].name, error))
                continue
            joined.append(_joined(together))
            new = seen.new_parameters(joined[-1])
            together = []
            sections.append(
                Section(
                    name=joined[-1].name,
                    flops=(counter.get_total_flops() - before) // count,
                    parameter_bytes=sum(each.nbytes for each in new),
                    kept_bytes=(seen.bytes - kept) // count,
                    passed_bytes=tuple(each.bytes for each in borders[-1].tensors),
                    returned_bytes=tuple(each.bytes for each in borders[-1].tensors if each.learns),
                    frozen_bytes=sum(each.nbytes for each in new if not each.requires_grad),
                    operations=done - begun,
                )
            )
    return Weighed(tuple(joined), tuple(sections), tuple(borders), tuple(blocked))


def joined_as(weighed: Weighed, parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same parts of another model like it."""
    left = iter(parts)
    return tuple(_joined([next(left) for _ in part.members or (part,)]) for part in weighed.parts)


def _joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    return Part(parts[0].name, nn.Sequential(*(part.module for part in parts)), parts[0].path, members=tuple(parts))


class _Operations(TorchDispatchMode):
    """Counts what a device is told to do; views cost it nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


class _Kept:
    """What autograd keeps for backward, by the memory it is in."""

    def __init__(self, parts: Sequence[Part], inputs: Tensor) -> None:
        self.bytes = 0
        self.counted: set[nn.Parameter] = set()
        # Kept alive, because a freed tensor's address may be another's soon.
        self.tensors: list[Tensor] = [inputs]
        self.storages = {_storage(inputs)}
        self.storages |= {_storage(parameter) for part in parts for parameter in part.module.parameters()}

    def note(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()  # with its graph, which keeps this, neither would ever go
        if tensor.layout == torch.strided and _storage(tensor) not in self.storages:
            self.tensors.append(tensor)
            self.storages.add(_storage(tensor))
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor

    def new_parameters(self, part: Part) -> list[nn.Parameter]:
        new = [each for each in part.module.parameters() if each not in self.counted]
        self.counted.update(new)
        return new


def _border(part: Part, value: Any, count: int) -> Border:
    tensors = [value] if isinstance(value, Tensor) else list(value) if isinstance(value, (tuple, list)) else []
    if not tensors or not all(isinstance(each, Tensor) for each in tensors):
        raise UserError(f"the model cannot be cut after '{part.name}', which gives {type(value).__name__}: {EXPLAINED}")
    for each in tensors:
        if each.dim() == 0 or each.shape[0] != count:
            shape = "x".join(map(str, each.shape)) or "a number"
            raise UserError(
                f"the model cannot be cut after '{part.name}', which gives {shape} for {count} samples: the first "
                "dimension of what crosses a cut must be the batch"
            )
    return Border(
        tuple(Passed(tuple(each.shape[1:]), each.dtype, each.requires_grad) for each in tensors),
        packed=not isinstance(value, Tensor),
    )


def _declared(workload: Workload, model: nn.Module) -> tuple[Part, ...]:
    assert workload.stages is not None
    paths = {module: path for path, module in model.named_modules()}
    given = workload.stages(model)
    if not isinstance(given, Iterable):
        raise UserError(
            f"the stages of '{workload.name}' are a {type(given).__name__}: stages=... must give the model's modules "
            "in a row, as in stages=lambda model: [model.body, model.head]"
        )
    modules = list(given)
    for module in modules:
        if not isinstance(module, nn.Module) or module not in paths:
            raise UserError(
                f"the stages of '{workload.name}' name a {type(module).__name__} that is no module of the model"
            )
    held = {parameter for module in modules for parameter in module.parameters()}
    for name, parameter in model.named_parameters():
        if parameter not in held:
            raise UserError(f"the stages of '{workload.name}' leave out '{name}'; they must be the whole model")
    return tuple(Part(paths[module] or type(module).__name__, module, paths[module]) for module in modules)


def _elements(model: nn.Module, path: str) -> Iterator[Part]:
    for name, child in model._modules.items():
        assert child is not None
        if _is_sequence(child):
            yield from _elements(child, f"{path}{name}.")
        else:
            yield Part(f"{path}{name}", child, f"{path}{name}")


def _is_sequence(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module) > 0


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
