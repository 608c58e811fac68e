"""Count the parameters, activations and flops of each layer of a model, on the meta device if possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scalewise.core.errors import UserError
from scalewise.models.workload import Workload


@dataclass(frozen=True)
class Layer:
    """One call of a module with one sample."""

    name: str
    """Type and number in the order of calls, as in the study's tables, for example 'Linear-1'."""
    module: str
    """Path of the module in the model, for example 'encoder.0'."""
    output_shape: tuple[int, ...]
    """Shape of the output without the batch dimension."""
    parameters: int
    parameter_bytes: int
    activation_bytes: int
    flops: int
    """Flops of the forward pass."""


@dataclass(frozen=True)
class Counts:
    """Layers in the order of their calls, and the flops of the whole model including operations between layers."""

    layers: tuple[Layer, ...]
    forward_flops: int
    training_flops: int
    device: str
    modules: int
    """Number of innermost modules that forward calls."""
    module_calls: int
    """Calls of innermost modules, of which a block may call one, such as an activation function, several times."""


def count(workload: Workload) -> Counts:
    """Count on the meta device, or on the CPU with one real sample if the model cannot run there."""
    try:
        return _count_on("meta", workload)
    except Exception:  # the model may need real numbers; if it fails on the CPU too, that error is raised
        try:
            with torch.random.fork_rng(devices=[]):
                return _count_on("cpu", workload)
        except UserError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())
            raise UserError(f"'{workload.name}' fails on one sample: {type(error).__name__}: {message}") from error


def _count_on(device: str, workload: Workload) -> Counts:
    with torch.device(device):
        model = workload.model().eval()
    with counting() as counter:
        recorder = _CallRecorder(model, counter)
        with recorder:
            outputs = model(recorder.keep(workload.example(1, device)))
        forward_flops = counter.get_total_flops()
        if any(parameter.requires_grad for parameter in model.parameters()):
            outputs.sum().backward()
        calls = recorder.innermost_calls()
        training_flops = counter.get_total_flops()
        return Counts(recorder.layers(), forward_flops, training_flops, device, len(set(calls)), len(calls))


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Count flops with fused attention and oneDNN kernels disabled, because the counter does not see inside them."""
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    mkldnn, *_ = torch.backends.mkldnn.set_flags(_enabled=False, _fp32_precision=None)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_attention)
        torch.backends.mkldnn.set_flags(_enabled=mkldnn, _fp32_precision=None)


@dataclass
class _OpenCall:
    module: nn.Module
    flops_before: int
    flops_inside: int = 0
    """Flops of the calls within this call."""


class _CallRecorder(ExitStack):
    """Record the calls of all modules of a model; `layers` returns them."""

    def __init__(self, model: nn.Module, counter: FlopCounterMode) -> None:
        super().__init__()
        self.paths = {module: path for path, module in model.named_modules()}
        self.counter = counter
        self.open: list[_OpenCall] = []
        self.done: list[tuple[nn.Module, list[Tensor], int, int]] = []
        # Referenced, because a freed tensor's address may be reused.
        self.tensors: list[Tensor] = []
        self.storages: set[int] = set()

    def __enter__(self) -> _CallRecorder:
        for module in self.paths:
            self.callback(module.register_forward_pre_hook(self._on_enter).remove)
            self.callback(module.register_forward_hook(self._on_leave).remove)
        return self

    def keep(self, tensor: Tensor) -> Tensor:
        """Record that the storage of this tensor has been counted."""
        self.tensors.append(tensor)
        self.storages.add(_storage(tensor))
        return tensor

    def _on_enter(self, module: nn.Module, _inputs: Any) -> None:
        self.open.append(_OpenCall(module, self.counter.get_total_flops()))

    def _on_leave(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        call = self.open.pop()
        flops = self.counter.get_total_flops() - call.flops_before
        if self.open:
            self.open[-1].flops_inside += flops
        tensors = list(_tensors(outputs))
        # A view of the input or the output of a child takes no memory of its own.
        fresh = [tensor for tensor in tensors if _storage(tensor) not in self.storages]
        fresh_bytes = sum({_storage(tensor): tensor.nbytes for tensor in fresh}.values())
        for tensor in tensors:
            self.keep(tensor)
        self.done.append((module, tensors, fresh_bytes, flops - call.flops_inside))

    def innermost_calls(self) -> list[nn.Module]:
        """Return the innermost module of every call."""
        return [module for module, *_ in self.done if next(module.children(), None) is None]

    def layers(self) -> tuple[Layer, ...]:
        """Return innermost modules with outputs of their own, and all other modules with own flops or parameters."""
        held = self._parameters()
        layers: list[Layer] = []
        for module, tensors, fresh_bytes, flops in self.done:
            parameters = held.pop(module, [])
            innermost = next(module.children(), None) is None
            if not (parameters or flops or (innermost and fresh_bytes)):
                continue
            layers.append(
                Layer(
                    name=f"{type(module).__name__}-{len(layers) + 1}",
                    module=self.paths[module],
                    output_shape=tuple(tensors[0].shape[1:]) if tensors else (),
                    parameters=sum(parameter.numel() for parameter in parameters),
                    parameter_bytes=sum(parameter.nbytes for parameter in parameters),
                    activation_bytes=fresh_bytes,
                    flops=flops,
                )
            )
        return tuple(layers)

    def _parameters(self) -> dict[nn.Module, list[nn.Parameter]]:
        """Return every parameter once, under its own module or the nearest enclosing module that was called."""
        called = Counter(module for module, *_ in self.done)
        module_at = {path: module for module, path in self.paths.items()}
        held: dict[nn.Module, list[nn.Parameter]] = {}
        counted: set[nn.Parameter] = set()
        for path, module in module_at.items():
            while module_at[path] not in called:
                path = path.rpartition(".")[0]
            for parameter in module.parameters(recurse=False):
                if parameter not in counted:
                    counted.add(parameter)
                    held.setdefault(module_at[path], []).append(parameter)
        return held


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors in a tensor, sequence or mapping (such as the outputs of transformers models)."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list, dict)):
        for part in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from _tensors(part)
