"""What every layer of a model keeps for its backward, and needs while that runs, counted on tensors without numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from scalewise.data.data import Data
from scalewise.prediction.held import LayerMemory
from scalewise.strategies.cuts import Cut
from scalewise.workloads.gpu_memory import Rooms
from scalewise.workloads.library_memory import libraries_on
from scalewise.workloads.memory_watch import Watch
from scalewise.workloads.workload import Workload

NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError, AssertionError)
"""What torch, numpy and Python raise where a model looks at numbers that are not there."""


def layers_of(
    workload: Workload,
    data: Data,
    samples: int,
    device: torch.device,
    precision: str = "fp32",
    *,
    cuts: Mapping[str, Cut] | None = None,
    least: bool = False,
    rooms: Rooms | None = None,
) -> tuple[LayerMemory, ...]:
    """One step over so many samples as it would be on the device; nothing if the model needs real numbers.

    `cuts`: layers of which a device computes a part. `least`: without what cuDNN takes where there is room, and can
    do without. `rooms`: what there is of it.
    """
    shapes = [((samples, *each.shape), each.dtype) for each in data.example()]
    try:
        with torch.device("meta"):
            model = workload.model()
        with _without_numbers(device, precision) as place:
            _move(model, place)
            inputs, targets = (torch.empty(shape, dtype=dtype, device=place) for shape, dtype in shapes)
            watch = Watch(model, [inputs, targets], libraries_on(device, cuts or {}, least, rooms or {}))
            with watch, _Attention(device):
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    outputs = model(inputs)
                    watch.enter("")
                    loss = workload.loss(outputs, targets)
                watch.turn()
                loss.backward()
    except NEEDS_NUMBERS:  # nothing is planned then, and the run says so
        return ()
    return watch.layers(model)


@contextmanager
def _without_numbers(device: torch.device, precision: str) -> Iterator[torch.device]:
    """Where to make tensors of shapes only. Torch takes the CPU's way through recurrent layers, and casts to bf16, only
    if they say that they are on that device; a GPU that is not there has no such tensors."""
    if device.type == "cuda" and not (precision == "bf16" and torch.cuda.is_available()):
        yield torch.device("meta")
        return
    with FakeTensorMode():
        yield device


def _move(model: nn.Module, place: torch.device) -> None:
    """By hand: torch exchanges tensors that say where they are only where nothing else knows of them."""
    moved: dict[Tensor | None, Tensor | None] = {None: None}
    for module in model.modules():
        plain = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
        for named in (module._parameters, module._buffers, plain):
            for name, tensor in named.items():
                if tensor not in moved and tensor is not None:
                    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)
                    trained = isinstance(tensor, nn.Parameter)
                    moved[tensor] = nn.Parameter(empty, tensor.requires_grad) if trained else empty
                named[name] = moved[tensor]  # type: ignore[assignment]
        vars(module).update(plain)


class _Attention(TorchFunctionMode):
    """As the device computes it: without numbers torch writes the whole matrix of attention, which no device keeps."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.on_cpu = device.type == "cpu"

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = {"is_causal"} >= kwargs.keys() and len(args) == 3
        if getattr(function, "__name__", "") != "scaled_dot_product_attention" or not plain:
            return function(*args, **kwargs)
        causal = kwargs.get("is_causal", False)
        if self.on_cpu:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, 0.0, causal)[0]
        if args[0].dtype == torch.bfloat16:
            return torch.ops.aten._scaled_dot_product_flash_attention(*args, 0.0, causal)[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention(*args, None, True, 0.0, causal)[0]
