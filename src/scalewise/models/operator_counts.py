"""Count the operators of one training step without a GPU and without allocating weights; bound its seconds."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.data.dataset import DataRequest
from scalewise.models.operator_rules import RECURRENT, costs_of, is_view, name_of, recurrent_layer, tensors_in
from scalewise.models.workload import Workload
from scalewise.predict.operators import BatchLine, Event, Operator, Phase, fused_chains, fused_operators, in_tf32
from scalewise.predict.roofline import DeviceLimits, Roofline, roofline_of

FUSED_PASSES = {
    "sgd": (2, 1),
    "momentum": (3, 2),
    "adam": (4, 3),
    "adamw": (4, 3),
    "adagrad": (3, 2),
    "adafactor": (6, 3),
}
"""Numbers that a fused update reads and writes per parameter element: parameter, gradient, optimizer state."""
FOREACH_PASSES = {
    "sgd": (2, 1, 1),
    "momentum": (5, 3, 3),
    "adam": (13, 8, 8),
    "adamw": (14, 9, 9),
    "adagrad": (8, 5, 5),
    "adafactor": (14, 8, 10),
}
"""Reads, writes and passes of the `foreach` implementation, which makes one pass per arithmetic step."""
TENSORS_PER_KERNEL = 30
ELEMENTS_PER_KERNEL = 65_536 * 320
"""Limits of one multi-tensor kernel: tensors with five lists, chunks x blocks (ATen MultiTensorApply.cuh)."""


def optimizer_operators(
    name: str, sizes: Sequence[tuple[int, int]], implementation: Literal["fused", "foreach"] = "fused"
) -> list[Operator]:
    """Return one record for the whole update. `sizes`: (elements, bytes per element) of every trained parameter."""
    if name not in FUSED_PASSES:
        raise unknown("optimizer", name, FUSED_PASSES)
    if not sizes:
        raise UserError("the model has no parameters to train")
    elements = sum(count for count, _ in sizes)
    stored = float(sum(count * size for count, size in sizes))
    groups = max(math.ceil(len(sizes) / TENSORS_PER_KERNEL), math.ceil(elements / ELEMENTS_PER_KERNEL))
    read, written = FUSED_PASSES[name]
    passes = 1
    if implementation == "foreach":
        read, written, passes = FOREACH_PASSES[name]
    return [
        Operator(
            name=f"{implementation} {name}",
            kind="optimizer",
            phase="update",
            precision="fp32",
            flops=4.0 * elements * (read + written),
            bytes_read=read * stored,
            bytes_written=written * stored,
            kernels=float(groups * passes),
            calls=float(passes + len(sizes) / 10),
        )
    ]


CountPrecision = Literal["fp32", "tf32", "bf16", "fp16"]
Layout = Literal["nchw", "nhwc"]
Execution = Literal["eager", "graph", "compiled"]

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Recorder(TorchDispatchMode):
    """Records every operator that is called, with its costs and the tensors that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase | None = None
        self.events: list[Event] = []
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            out = func(*args, **kwargs)
        except DataDependentOutputException:
            return _assumed_value(args[0])
        if self.phase is not None and not str(func).startswith("prim."):
            self._record(func, args, kwargs, out)
        return out

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        costs = costs_of(func, args, kwargs, out)
        calls = 1.0 if costs or is_view(func) else 0.0
        if not costs and self.events:
            last = self.events[-1]
            self.events[-1] = last.with_more_calls(calls * VIEW_CALL)
            return
        inputs = tuple((self._identity(tensor), tensor.numel()) for tensor in tensors_in((args, kwargs)))
        outputs = tuple((self._identity(tensor), tensor.numel()) for tensor in tensors_in(out))
        for number, cost in enumerate(costs):
            self.add(
                Operator(
                    name=name_of(func),
                    kind=cost.kind,
                    phase=self.phase or "forward",
                    precision=cost.precision,
                    flops=cost.flops,
                    bytes_read=cost.bytes_read,
                    bytes_written=cost.bytes_written,
                    kernels=cost.kernels,
                    calls=calls if number == 0 else 0.0,
                    shape=cost.shape,
                    window=cost.window,
                    image=cost.image,
                    stride=cost.stride,
                    role=cost.role,
                    channels_last=cost.channels_last,
                ),
                inputs,
                outputs,
            )

    def add(
        self, operator: Operator, inputs: tuple[tuple[int, int], ...] = (), outputs: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.events.append(Event(operator, inputs, outputs))

    def _identity(self, tensor: Tensor) -> int:
        """Return the number of the tensor's storage, and keep the storage so that its number is not used again."""
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return int(storage._cdata)


def _assumed_value(tensor: Tensor) -> float | int | bool:
    """Value of a fake tensor that the model reads with .item(), such as a rate of dropout: zero or false."""
    if tensor.dtype == torch.bool:
        return False
    return 0.0 if tensor.is_floating_point() else 0


VIEW_CALL = 0.3
"""Host time of a view divided by the host time of an operator that launches a kernel."""


class AsOnGpu(TorchFunctionMode):
    """Records the operators that a GPU runs for functions that a CPU decomposes into many operators."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in RECURRENT and getattr(func, "__module__", None) in ("torch", None):
            return recurrent_layer(name, args, self.recorder)
        if name == "scaled_dot_product_attention":
            if "dropout_p" in kwargs:  # the fused GPU kernels draw their own mask
                kwargs["dropout_p"] = 0.0
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
        if func is nn.functional.dropout:
            return _dropout(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    del inplace
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


@dataclass(frozen=True)
class CountOptions:
    """Options of the counted step."""

    loss: Callable[[Any], Tensor] | None = None
    """Maps the model's output to a scalar; without it the sum of the output is used."""
    optimizer: str | None = "sgd"
    """Name of the optimizer; None: the update is not counted."""
    optimizer_implementation: Literal["fused", "foreach"] = "fused"
    precision: CountPrecision = "fp32"
    """Precision of the step; bf16 and fp16 mean autocast."""
    dtype: torch.dtype = torch.float32
    """Data type of the parameters."""
    layout: Layout = "nchw"
    execution: Execution = "eager"
    backward: bool = True


def count_operators(
    model: Callable[[], nn.Module], inputs: Callable[[], Any], options: CountOptions | None = None, **changes: Any
) -> list[Operator]:
    """Return the operators of one step, in the order of execution.

    `model` and `inputs` are called under fake tensors, so nothing is allocated. `inputs` returns the positional
    arguments of the model (a tuple), its keyword arguments (a dict) or its only argument. `changes` are fields of
    `CountOptions`.
    """
    options = replace(options or CountOptions(), **changes)
    events, sizes = _recorded_step(model, inputs, options)
    return _operators(events, sizes, options, fused_chains(events) if options.execution == "compiled" else None)


def count_fused_and_unfused(
    model: Callable[[], nn.Module], inputs: Callable[[], Any], options: CountOptions
) -> tuple[list[Operator], list[Operator]]:
    """Operators of one step as a compiler fuses them, and as eager execution runs them, from one count."""
    events, sizes = _recorded_step(model, inputs, options)
    return _operators(events, sizes, options, fused_chains(events)), _operators(events, sizes, options, None)


def count_batches(
    model: Callable[[], nn.Module],
    inputs: Callable[[int], Any],
    batches: tuple[int, int] = (2, 4),
    options: CountOptions | None = None,
    **changes: Any,
) -> BatchLine:
    """Count operators at two batches and return them as functions of the batch. `inputs` is called with the batch.

    Of a model with many equal blocks, only a few blocks are counted; the result equals a full count.
    """
    options = replace(options or CountOptions(), **changes)
    if options.execution != "compiled" and (line := _count_few_blocks(model, inputs, batches, options)):
        return line
    low, high = (_recorded_step(model, partial(inputs, batch), options) for batch in batches)
    chains = fused_chains(high[0]) if options.execution == "compiled" else None
    counts = [_operators(events, sizes, options, chains) for events, sizes in (low, high)]
    return BatchLine(*batches, tuple(counts[0]), tuple(counts[1])).merged()


FEWEST_BLOCKS = 16
"""Fewest equal blocks of a model of which only a few are counted."""


def _count_few_blocks(
    model: Callable[[], nn.Module], inputs: Callable[[int], Any], batches: tuple[int, int], options: CountOptions
) -> BatchLine | None:
    """Count the model with two, three and four of its equal blocks, and extrapolate to all of them.

    None if the model has no list of equal blocks, or if its operators do not grow in proportion to the blocks.
    """
    with _fake_step(options.dtype):
        module = _built(model)
        blocks = equal_blocks(module)
        if blocks is None:
            return None
        total, sizes = len(blocks), _trained_sizes(module)

        def operators(count: int, batch: int) -> list[Operator]:
            del blocks[count:]
            module.zero_grad(set_to_none=True)
            events = _record_step(module, partial(inputs, batch), options)
            return _operators(events, [], replace(options, optimizer=None), None)

        try:
            # In this order: a model that computes something only in its first step is not proportional to the blocks.
            checked = Counter(operators(4, batches[0]))
            low, high = operators(3, batches[0]), operators(3, batches[1])
            low_of_two, high_of_two = operators(2, batches[0]), operators(2, batches[1])
        except Exception:  # the model needs all of its blocks; if it fails with them too, that error is raised
            return None
    if len(low) != len(high) or len(low_of_two) != len(high_of_two):
        return None
    of_two, of_three = Counter(zip(low_of_two, high_of_two, strict=True)), Counter(zip(low, high, strict=True))
    if of_two - of_three or checked - Counter(low) != Counter(low) - Counter(low_of_two):
        return None
    counts = {pair: number + (total - 3) * (number - of_two[pair]) for pair, number in of_three.items()}
    update = _operators([], sizes, options, None)
    pairs = [tuple(replace(operator, count=float(count)) for operator in pair) for pair, count in counts.items()]
    return BatchLine(*batches, *(tuple(column) + tuple(update) for column in zip(*pairs, strict=True))).merged()


def equal_blocks(module: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """Return the module's largest list of at least FEWEST_BLOCKS blocks that differ in their weights only."""
    lists = [
        child
        for child in module.modules()
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child) >= FEWEST_BLOCKS and _are_equal([*child])
    ]
    return max(lists, key=lambda child: sum(part.numel() for part in child.parameters()), default=None)


def _are_equal(blocks: Sequence[nn.Module]) -> bool:
    """Whether blocks have the same structure, sizes and attributes, except for attributes that number them."""
    if len({id(block) for block in blocks}) < len(blocks) or len({str(block) for block in blocks}) > 1:
        return False
    return all(_modules_are_equal(parts) for parts in zip(*(block.modules() for block in blocks), strict=True))


def _modules_are_equal(modules: Sequence[nn.Module]) -> bool:
    tensors = [(*module._parameters.items(), *module._buffers.items()) for module in modules]
    shapes = [
        [(name, None if tensor is None else (tensor.shape, tensor.dtype, tensor.requires_grad)) for name, tensor in row]
        for row in tensors
    ]
    attributes = [{key: value for key, value in vars(module).items() if key not in OF_TORCH} for module in modules]
    return (
        shapes.count(shapes[0]) == len(shapes)
        and all(row.keys() == attributes[0].keys() for row in attributes)
        and all(_values_are_equal([row[name] for row in attributes]) for name in attributes[0])
    )


OF_TORCH = {"_parameters", "_buffers", "_modules"}


def _values_are_equal(values: Sequence[Any]) -> bool:
    if values == [*range(len(values))]:
        return True
    return all(value is values[0] or (type(value) is type(values[0]) and bool(value == values[0])) for value in values)


def _operators(
    events: list[Event], sizes: list[tuple[int, int]], options: CountOptions, chains: list[list[int]] | None
) -> list[Operator]:
    operators = [event.operator for event in events] if chains is None else fused_operators(events, chains)
    if options.optimizer is not None and options.backward:
        operators += optimizer_operators(options.optimizer, sizes, options.optimizer_implementation)
    return in_tf32(operators) if options.precision == "tf32" else operators


def _recorded_step(
    model: Callable[[], nn.Module], inputs: Callable[[], Any], options: CountOptions
) -> tuple[list[Event], list[tuple[int, int]]]:
    """Return the events of forward and backward, and the sizes of the trained parameters."""
    with _fake_step(options.dtype):
        module = _built(model)
        try:
            events = _record_step(module, inputs, options)
        except DynamicOutputShapeException as error:
            raise UserError(
                f"the operator {error.func} has an output whose size depends on the data, so its work cannot be "
                "counted in advance; for a mixture of experts give every expert the same number of tokens"
            ) from error
        return events, _trained_sizes(module)


def _built(model: Callable[[], nn.Module]) -> nn.Module:
    """Build a module of fake tensors; recorders answer if it reads a value, such as a rate of dropout."""
    with Recorder() as recorder, AsOnGpu(recorder):
        return model().train()


def _trained_sizes(module: nn.Module) -> list[tuple[int, int]]:
    """Return (elements, bytes per element) of every trained parameter."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [(parameter.numel(), parameter.element_size()) for parameter in trained]


def parameter_bytes(model: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> int:
    """Return the bytes of the model's parameters without allocating them."""
    with _fake_step(dtype):
        return sum(parameter.numel() * parameter.element_size() for parameter in _built(model).parameters())


def _record_step(module: nn.Module, inputs: Callable[[], Any], options: CountOptions) -> list[Event]:
    """Return the events of forward and backward of a module of fake tensors."""
    arguments = inputs()
    if options.layout == "nhwc":
        arguments = _channels_last(arguments)
    recorder = Recorder()
    with recorder, AsOnGpu(recorder):
        _run_step(module, arguments, options, recorder)
    return recorder.events


def _run_step(module: nn.Module, arguments: Any, options: CountOptions, recorder: Recorder) -> None:
    autocast = AUTOCAST.get(options.precision)
    context: AbstractContextManager[Any] = torch.autocast("cpu", autocast) if autocast else nullcontext()
    recorder.phase = "forward"
    with torch.set_grad_enabled(options.backward):
        with context:
            if isinstance(arguments, dict):
                output = module(**arguments)
            elif isinstance(arguments, tuple):
                output = module(*arguments)
            else:
                output = module(arguments)
            scalar = (options.loss or _sum_of)(output) if options.backward else None
        if scalar is not None:
            recorder.phase = "backward"
            scalar.backward()
    recorder.phase = None


def _sum_of(output: Any) -> Tensor:
    return torch.stack([tensor.float().sum() for tensor in tensors_in(output) if tensor.requires_grad]).sum()


def _channels_last(arguments: Any) -> Any:
    if isinstance(arguments, Tensor):
        return arguments.to(memory_format=torch.channels_last) if arguments.dim() == 4 else arguments
    if isinstance(arguments, tuple):
        return tuple(map(_channels_last, arguments))
    if isinstance(arguments, dict):
        return {key: _channels_last(value) for key, value in arguments.items()}
    return arguments


@contextmanager
def _fake_step(dtype: torch.dtype) -> Iterator[None]:
    before, mkldnn = torch.get_default_dtype(), torch._C._get_mkldnn_enabled()
    torch.set_default_dtype(dtype)
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True  # it logs the traceback of errors that are reported anyway
    torch._C._set_mkldnn_enabled(False)  # oneDNN's own operators would hide the convolutions
    try:
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            yield
    finally:
        torch._C._set_mkldnn_enabled(mkldnn)
        logger.disabled = disabled
        torch.set_default_dtype(before)


def workload_roofline(
    workload: Workload,
    limits: DeviceLimits,
    *,
    batch: int,
    precision: CountPrecision = "fp32",
    peak: DeviceLimits | None = None,
    optimizer: str | None = None,
) -> Roofline:
    """Bound one step of forward, backward and update. Nothing is computed and no weight is allocated.

    `limits` are the rates of the device, `peak` those of its specification if they are shown too. `optimizer` replaces
    the workload's.
    """
    options = CountOptions(loss=counted_loss(workload), optimizer=optimizer or workload.optimizer, precision=precision)
    try:
        fused, unfused = count_fused_and_unfused(workload.model, lambda: workload.example(batch), options)
        return roofline_of(fused, unfused, limits, batch, precision, peak)
    except UserError:
        raise
    except Exception as error:  # the user's model may raise anything under fake tensors
        message = " ".join(str(error).split())
        raise UserError(
            f"the operators of '{workload.name}' cannot be counted at batch {batch}: {type(error).__name__}: {message}"
        ) from error


def counted_loss(workload: Workload) -> Callable[[Any], Tensor]:
    """Return the workload's loss as a function of the outputs, for counting; the targets are zeros."""
    target = workload.data(DataRequest(samples=2)).example()[1]

    def loss(outputs: Tensor) -> Tensor:
        return workload.loss(outputs, torch.zeros((len(outputs), *target.shape), dtype=target.dtype))

    return loss
