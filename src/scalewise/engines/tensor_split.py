"""Split layers over devices with DTensor, and check that the split model computes the same.

columns  x ------- copy ---+-- F.linear(x, columns of W) -- part of y        backward: gradients of x are summed
rows     part of x --------+-- F.linear(x, rows of W) -- sum -- y            only the first part adds the bias

The output of a column layer is an ordinary tensor with fewer features. It passes through element-wise functions or
whole attention heads into a row layer. Each part draws its own random numbers (dropout) between the two layers; all
other random numbers are equal on all parts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data
from scalewise.engines.model_parts import TensorSplit
from scalewise.models.chain import WEIGHED, example_of, unchanged_buffers
from scalewise.models.model_split import largest_difference
from scalewise.models.workload import Workload, one_tensor
from scalewise.runtime.clock import Clock
from scalewise.runtime.execution import seed_of
from scalewise.strategies.tensor_splitting import LayerSplit

RULE = "outputs of layers in columns= must pass through element-wise functions or whole heads into layers in rows="
Apply = Callable[[nn.Module], None]
"""Function that splits the layers of a model in place and keeps one part, without summing over parts."""


@dataclass
class ForwardRecord:
    """Random numbers and calls of split layers during one forward pass."""

    draws: list[tuple[int, ...]] = field(default_factory=list)
    """Shape of every tensor of random numbers, in order."""
    inside: list[bool] = field(default_factory=list)
    """For every entry of `draws`: whether it lies between a column and a row layer."""
    starts: set[str] = field(default_factory=set)
    """Column layers that are called first or after a row layer."""
    follows: set[str] = field(default_factory=set)
    """Column layers that are called after another column layer."""
    outputs: tuple[int, ...] = ()
    """Shape of the model's output."""
    between: bool = False
    """Whether the last split layer that was called is a column layer."""

    def record_call(self, name: str, role: str) -> None:
        if role == "columns":
            (self.follows if self.between else self.starts).add(name)
        self.between = role == "columns"

    def record_draw(self, shape: tuple[int, ...]) -> None:
        self.draws.append(shape)
        self.inside.append(self.between)


class _RandomNumberRecorder(TorchDispatchMode):
    def __init__(self, record: ForwardRecord) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn = result if isinstance(result, Tensor) else result[0]
            self.record.record_draw(tuple(drawn.shape))
        return result


def find_own_random_numbers(
    workload: Workload, data: Data, layer_splits: Mapping[str, LayerSplit], apply: Apply
) -> frozenset[str]:
    """Return the column layers after which every part must draw its own random numbers, until the next row layer.

    The result is empty if the model draws none there. The model runs on the meta device if it can, else on the CPU.
    Raise UserError if the model fails with these layers split, or draws random numbers that can neither be equal on all
    parts nor different."""
    for device in ("meta", "cpu"):
        with torch.random.fork_rng(devices=[]):
            inputs = example_of(data, WEIGHED, device)
            try:
                with torch.device(device):
                    model = workload.model()
                whole = _record_forward(model, inputs, layer_splits)
            except Exception:  # the model may need real numbers; if it fails on the CPU too, training reports it
                continue
            apply(model)
            try:
                part = _record_forward(model, inputs, layer_splits)
            except Exception as error:  # the model may raise anything for tensors of other sizes
                raise UserError(f"tensor: the model fails with these layers split ({error}); {RULE}") from error
        if part.outputs != whole.outputs:
            raise UserError(
                f"tensor: with these layers split the model's output has shape {part.outputs}, not {whole.outputs}; "
                f"{RULE}"
            )
        _refuse_mixed_draws(whole, part)
        return frozenset(part.starts) if any(part.inside) else frozenset()
    return frozenset()


def _record_forward(model: nn.Module, inputs: Tensor, layer_splits: Mapping[str, LayerSplit]) -> ForwardRecord:
    record = ForwardRecord()
    with ExitStack() as hooks, unchanged_buffers([model]), torch.no_grad(), _RandomNumberRecorder(record):
        for name, split in layer_splits.items():
            hooks.callback(model.get_submodule(name).register_forward_hook(_call_hook(record, name, split.role)).remove)
        record.outputs = tuple(model(inputs).shape)
    return record


def _call_hook(record: ForwardRecord, name: str, role: str) -> Callable[..., None]:
    return lambda *_: record.record_call(name, role)


def _refuse_mixed_draws(whole: ForwardRecord, part: ForwardRecord) -> None:
    """Raise UserError unless random tensors are smaller than whole between column and row layers only."""
    if len(whole.draws) != len(part.draws):
        raise UserError(
            f"tensor: with these layers split the model draws random numbers (dropout) {len(part.draws)} times instead "
            f"of {len(whole.draws)}, so that the parts would diverge; name other layers, or use another strategy"
        )
    for expected, shape, inside in zip(whole.draws, part.draws, part.inside, strict=True):
        if inside and expected == shape:
            raise UserError(
                f"tensor: between layers in columns= and rows= the model draws random numbers of shape {shape}, which "
                "all parts must share, but each part would draw its own; draw them before, or use another strategy"
            )
        if not inside and expected != shape:
            raise UserError(
                f"tensor: outside of layers in columns= and rows= the model draws random numbers of shape {shape} "
                f"instead of {expected}, so that all parts would draw the same numbers for different features; name "
                "other layers, or use another strategy"
            )
    both = part.starts & part.follows
    if both and any(part.inside):
        raise UserError(
            f"tensor: '{min(both)}' follows a layer in columns= in some calls but not in others, and random numbers "
            "are drawn after it; name other layers, or use another strategy"
        )


@dataclass(frozen=True)
class WholeModelRecord:
    """Inputs and outputs of every row layer of the whole model, call by call, and the output of the model."""

    calls: tuple[tuple[str, Tensor, Tensor], ...]
    outputs: Tensor


def record_whole_model(
    workload: Workload, model: nn.Module, data: Data, layer_splits: Mapping[str, LayerSplit]
) -> WholeModelRecord:
    """Run the whole model on the host in evaluation mode, so that batch norm and dropout have no effect."""
    calls: list[tuple[str, Tensor, Tensor]] = []
    with ExitStack() as hooks, _evaluation_mode(model):
        for name, split in layer_splits.items():
            if split.role == "rows":
                hook = _record_hook(calls, name)
                hooks.callback(model.get_submodule(name).register_forward_hook(hook).remove)
        outputs = one_tensor(workload.name, model(example_of(data, WEIGHED, "cpu")))
    return WholeModelRecord(tuple(calls), outputs)


def _record_hook(calls: list[tuple[str, Tensor, Tensor]], name: str) -> Callable[..., None]:
    return lambda _, inputs, outputs: calls.append((name, inputs[0].clone(), outputs.clone()))


def refuse_different_model(
    model: nn.Module, data: Data, layer_splits: Mapping[str, LayerSplit], part: int, expected: WholeModelRecord
) -> None:
    """Run this part of the split model on the host and raise UserError if it differs from the whole model.

    The input of every row layer must be this part's piece of the input in the whole model. The layer's output is then
    replaced by that of the whole model, because the sum over parts needs all ranks."""
    calls = iter(expected.calls)

    def compared(name: str, split: LayerSplit) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> Tensor:
            expected_name, whole_input, whole_output = next(calls, ("", torch.empty(0), torch.empty(0)))
            if expected_name != name:
                raise UserError(f"tensor: with these layers split the model calls '{name}' in another order; {RULE}")
            dimension = -1 if isinstance(module, nn.Linear) else 1
            own_input = whole_input.split(split.sizes, dimension)[part]
            if difference := largest_difference(inputs[0], own_input):
                raise UserError(
                    f"tensor: with these layers split the model computes something else: the input of '{name}' is not "
                    f"a part of its input in the whole model ({difference}); {RULE}"
                )
            return whole_output.clone()

        return hook

    with ExitStack() as hooks, _evaluation_mode(model):
        for name, split in layer_splits.items():
            if split.role == "rows":
                hooks.callback(model.get_submodule(name).register_forward_hook(compared(name, split)).remove)
        outputs = model(example_of(data, WEIGHED, "cpu"))
    if difference := largest_difference(outputs, expected.outputs):
        raise UserError(f"tensor: with these layers split the model's output differs ({difference}); {RULE}")


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and restore its modes, buffers and random state afterwards."""
    in_training = [module for module in model.modules() if module.training]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), unchanged_buffers([model]):
        model.eval()
        try:
            yield
        finally:
            for module in in_training:
                module.training = True


class PartRandomState:
    """Random numbers of one part, seeded by a number that all parts draw.

    Checkpoints need no extra state, and activation checkpointing draws the same numbers again."""

    def __init__(self, part: int, device: torch.device) -> None:
        self.part = part
        self.on_gpu = device.type == "cuda"
        self.shared_state: tuple[Tensor, Tensor | None] | None = None
        """State of the generators that all parts share, saved while each part draws its own numbers."""

    def begin(self) -> None:
        seed = seed_of(int(torch.randint(2**62, ())), self.part)
        self.shared_state = torch.get_rng_state(), torch.cuda.get_rng_state() if self.on_gpu else None
        torch.default_generator.manual_seed(seed)
        if self.on_gpu:
            torch.cuda.manual_seed(seed)

    def end(self) -> None:
        if self.shared_state is None:
            return
        host_state, gpu_state = self.shared_state
        self.shared_state = None
        torch.set_rng_state(host_state)
        if gpu_state is not None:
            torch.cuda.set_rng_state(gpu_state)


class SumOverParts:
    """All-reduce over the devices that share a model, recorded on the clock."""

    def __init__(self, mesh: DeviceMesh | None, clock: Clock) -> None:
        self.mesh = mesh if mesh and mesh.size() > 1 else None
        self.clock = clock

    def add(self, tensor: Tensor, phase: str) -> Tensor:
        """Return the sum over all parts. `phase` names what the device did until now."""
        if self.mesh is None:
            return tensor
        self.clock.lap(phase)
        total = DTensor.from_local(tensor.contiguous(), self.mesh, [Partial()], run_check=False).full_tensor()
        self.clock.lap("reduce")
        return total

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable the all-reduce: `add` returns its argument."""
        mesh, self.mesh = self.mesh, None
        try:
            yield
        finally:
            self.mesh = mesh


class _Copy(torch.autograd.Function):
    """Identity in forward, sum of the parts' gradients in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, copies: InputCopies) -> Tensor:
        ctx.copies = copies
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.copies.last = None
        return ctx.copies.sums.add(gradient, "backward"), None


class _Sum(torch.autograd.Function):
    """Sum over the parts in forward, identity in backward. The result is no view, so in-place layers may follow."""

    @staticmethod
    def forward(_: Any, tensor: Tensor, sums: SumOverParts) -> Tensor:
        return sums.add(tensor, "forward").detach()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Columns(ParallelStyle):
    """Keep a part of a layer's outputs. Layers with the same input tensor share the sum of its gradients."""

    def __init__(self, split: LayerSplit, part: int, copies: InputCopies, draws: PartRandomState | None) -> None:
        """`draws` is given if each part draws its own random numbers after this layer."""
        self.split, self.part, self.copies, self.draws = split, part, copies, draws

    def _apply(self, module: nn.Module, _: DeviceMesh) -> nn.Module:
        _keep_part(module, "weight", TensorSplit(0, self.split.sizes), self.part)
        if module.bias is not None:
            _keep_part(module, "bias", TensorSplit(0, self.split.sizes), self.part)
        module.register_forward_pre_hook(lambda _, inputs: (self.copies.copy(inputs[0]), *inputs[1:]))
        if draws := self.draws:
            module.register_forward_hook(lambda module, *_: draws.begin() if module.training else None)
        return module


class Rows(ParallelStyle):
    """Keep a part of a layer's inputs and sum the outputs over the parts."""

    def __init__(self, split: LayerSplit, part: int, sums: SumOverParts, draws: PartRandomState) -> None:
        self.split, self.part, self.sums, self.draws = split, part, sums, draws

    def _apply(self, module: nn.Module, _: DeviceMesh) -> nn.Module:
        _keep_part(module, "weight", TensorSplit(1, self.split.sizes), self.part)
        if self.part:
            module.register_parameter("bias", None)
        module.register_forward_hook(self._sum_outputs)
        return module

    def _sum_outputs(self, _: nn.Module, __: Any, outputs: Tensor) -> Tensor:
        self.draws.end()
        total: Tensor = _Sum.apply(outputs, self.sums)  # type: ignore[no-untyped-call]
        return total


class InputCopies:
    """Copies of the inputs of column layers; consecutive layers with the same input (query, key, value) share one."""

    def __init__(self, sums: SumOverParts) -> None:
        self.sums = sums
        self.last: tuple[weakref.ref[Tensor], Tensor] | None = None
        """Last tensor and its copy; reset in backward to free the memory."""

    def copy(self, tensor: Tensor) -> Tensor:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        if self.last is None or self.last[0]() is not tensor:
            self.last = weakref.ref(tensor), _Copy.apply(tensor, self)  # type: ignore[no-untyped-call]
        return self.last[1]


def split_layers(
    model: nn.Module,
    layer_splits: Mapping[str, LayerSplit],
    part: int,
    mesh: DeviceMesh,
    clock: Clock,
    own_random: Collection[str],
    device: torch.device,
) -> SumOverParts:
    """Replace every layer in `layer_splits` by one part. After layers in `own_random` parts draw their own numbers."""
    sums = SumOverParts(mesh, clock)
    parallelize_module(model, mesh, _styles(layer_splits, part, sums, own_random, device))
    return sums


def layers_with_own_random_numbers(
    workload: Workload, data: Data, layer_splits: Mapping[str, LayerSplit], clock: Clock
) -> frozenset[str]:
    """Find these layers by a run of the first part."""

    def apply(model: nn.Module) -> None:
        for name, style in _styles(layer_splits, 0, SumOverParts(None, clock), (), torch.device("cpu")).items():
            style._apply(model.get_submodule(name), None)  # type: ignore[arg-type]

    return find_own_random_numbers(workload, data, layer_splits, apply)


def _styles(
    layer_splits: Mapping[str, LayerSplit],
    part: int,
    sums: SumOverParts,
    own_random: Collection[str],
    device: torch.device,
) -> dict[str, ParallelStyle]:
    copies, draws = InputCopies(sums), PartRandomState(part, device)
    return {
        name: Columns(split, part, copies, draws if name in own_random else None)
        if split.role == "columns"
        else Rows(split, part, sums, draws)
        for name, split in layer_splits.items()
    }


def splits_of(model: nn.Module, layer_splits: Mapping[str, LayerSplit]) -> dict[str, TensorSplit]:
    """Return how every parameter of the whole model is split over the parts."""
    splits = {}
    for name, _ in model.named_parameters():
        layer, _, kind = name.rpartition(".")
        split = layer_splits.get(layer)
        if split and split.role == "columns":
            splits[name] = TensorSplit(0, split.sizes)
        elif split and kind == "weight":
            splits[name] = TensorSplit(1, split.sizes)
        else:
            splits[name] = TensorSplit()
    return splits


def _keep_part(module: nn.Module, name: str, split: TensorSplit, part: int) -> None:
    whole: nn.Parameter = getattr(module, name)
    setattr(module, name, nn.Parameter(split.of(whole.detach(), part).clone(), requires_grad=whole.requires_grad))


def refuse_shared_weights(model: nn.Module, layer_splits: Mapping[str, LayerSplit]) -> None:
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter, name)
        if first != name and {first.rpartition(".")[0], name.rpartition(".")[0]} & set(layer_splits):
            raise UserError(
                f"tensor cannot split '{name}', because it is shared with '{first}'; name other layers to split"
            )
