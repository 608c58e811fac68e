"""What every layer of a model keeps for its backward, and needs while that runs, counted on tensors without numbers."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalewise.data.data import Data
from scalewise.prediction.held import LayerMemory
from scalewise.workloads.workload import Workload

ONEDNN_BLOCK = 8
"""Channels side by side in the layout of oneDNN's convolutions on the CPU."""
WIDEST_PADDING = 14
"""That those know; as seen with torch 2.11 and 2.13."""


def layers_of(
    workload: Workload, data: Data, samples: int, device: torch.device, precision: str = "fp32"
) -> tuple[LayerMemory, ...]:
    """One step over so many samples as it would be on the device; nothing if the model needs real numbers."""
    try:
        with torch.device("meta"):
            model = workload.model()
        inputs, targets = (
            torch.empty((samples, *each.shape), dtype=each.dtype, device="meta") for each in data.example()
        )
        if precision == "bf16":
            model = model.to(torch.bfloat16)
            inputs = inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs
        watch = _Watch(model, [inputs, targets], on_cpu=device.type == "cpu")
        with watch, _Attention(device):
            outputs = model(inputs)
            watch.enter("")
            loss = workload.loss(outputs, targets)
            watch.turn()
            loss.backward()
        return watch.layers(model)
    except Exception:  # whatever a model does with real numbers only: nothing is planned then, and the run says so
        return ()


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


class _Watch(TorchDispatchMode):
    """Writes down when memory comes and goes, and which layer was at work then."""

    def __init__(self, model: nn.Module, batch: list[Tensor], on_cpu: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_cpu = on_cpu
        self.paths: list[str] = []
        """Of the layers, in the order of their calls."""
        self.at = 0
        self.events: list[tuple[int, int, int]] = []
        """(number of a piece of memory, its bytes or minus them, layer at work)."""
        self.turned = 0
        """Events before backward."""
        self.numbers: dict[int, int] = {}
        """Of the pieces that are there now, by address."""
        self.known = {_storage(each)._cdata for each in [*model.parameters(), *model.buffers(), *batch]}
        self.gradients: set[int] = set()
        for path, module in model.named_modules():
            if next(module.children(), None) is None:
                module.register_forward_pre_hook(lambda *_, path=path: self.enter(path))
                module.register_forward_hook(lambda _, __, outputs: self._leave(outputs))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._complete)

    def enter(self, path: str) -> None:
        self.paths.append(path)
        self.at = len(self.paths) - 1

    def turn(self) -> None:
        self.turned = len(self.events)

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = _storage(tensor)
            address, nbytes = storage._cdata, storage.nbytes()
            if address not in self.numbers and address not in self.known:
                number = self.numbers[address] = len(self.events)
                self.events.append((number, nbytes, self.at))
                weakref.finalize(storage, self._gone, address, number, nbytes).atexit = False
        if self.on_cpu and (copied := _copied_by_onednn(function, args, result)):
            number = len(self.events)
            self.events += [(number, copied, self.at), (number, -copied, self.at)]
        return result

    def _gone(self, address: int, number: int, nbytes: int) -> None:
        del self.numbers[address]
        self.events.append((number, -nbytes, self.at))

    def _leave(self, outputs: Any) -> None:
        """Backward is in this layer from when the gradient of what it puts out is complete."""
        layer = self.at
        for tensor in _tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._back_in(layer))

    def _back_in(self, layer: int) -> None:
        self.at = layer

    def _complete(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.gradients.add(self.numbers[_storage(parameter.grad)._cdata])

    def layers(self, model: nn.Module) -> tuple[LayerMemory, ...]:
        kept = [0] * len(self.paths)
        made_in: dict[int, int] = {}
        for number, nbytes, layer in self.events[: self.turned]:
            kept[made_in.setdefault(number, layer)] += nbytes
        up_to = list(accumulate(kept))
        most = [[0] * len(self.paths), [0] * len(self.paths)]
        live = 0
        for position, (number, nbytes, layer) in enumerate(self.events):
            if number in self.gradients:
                continue
            live += nbytes
            if nbytes > 0:  # what the layer before it has not yet given back is not this one's
                way = most[position >= self.turned]
                way[layer] = max(way[layer], live - up_to[layer])
        trained, frozen = self._held_by(model)
        return tuple(
            LayerMemory(path, tuple(trained[number]), kept[number], most[0][number], most[1][number], frozen[number])
            for number, path in enumerate(self.paths)
        )

    def _held_by(self, model: nn.Module) -> tuple[list[list[int]], list[int]]:
        """Each parameter and buffer once, with the first layer that is, or is within, the module that has it."""
        trained: list[list[int]] = [[] for _ in self.paths]
        frozen = [0] * len(self.paths)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            owner = name.rpartition(".")[0]
            near = (number for number, path in enumerate(self.paths) if f"{path}.".startswith(f"{owner}."))
            layer = next(near, 0) if owner else 0
            nbytes = tensor.numel() * max(tensor.element_size(), 4 * tensor.is_floating_point())
            if tensor.requires_grad:
                trained[layer].append(nbytes)
            else:
                frozen[layer] += nbytes
        return trained, frozen


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _tensors(result: Any) -> Iterable[Tensor]:
    return (each for each in tree_leaves(result) if isinstance(each, Tensor))


def _copied_by_onednn(function: Any, args: Any, result: Any) -> int:
    """A convolution on the CPU copies what it reads and writes into a layout of its own, while it runs; or, where it
    pads widely, what a sample's matrix product reads."""
    backward = function is torch.ops.aten.convolution_backward.default
    if not backward and function is not torch.ops.aten.convolution.default:
        return 0
    given, taken, weight = args[:3] if backward else (result, *args[:2])
    padding = args[5 if backward else 4]
    if math.prod(weight.shape[2:]) == 1:
        return 0
    if max(padding) > WIDEST_PADDING:
        columns = math.prod(weight.shape[1:]) * math.prod(given.shape[2:]) * weight.element_size()
        return int(columns + taken.nbytes) if backward else int(given.nbytes)
    return int(weight.nbytes) + _in_blocks(taken) + _in_blocks(given)


def _in_blocks(tensor: Tensor) -> int:
    channels = tensor.shape[1]
    return tensor.nbytes // channels * -(-channels // ONEDNN_BLOCK) * ONEDNN_BLOCK if channels >= ONEDNN_BLOCK else 0
