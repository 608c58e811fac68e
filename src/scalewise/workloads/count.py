"""What every layer of a model holds and computes, counted on torch's meta device: shapes without numbers."""

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

from scalewise.errors import UserError
from scalewise.workloads.workload import Workload


@dataclass(frozen=True)
class Layer:
    """One call of a module, for a batch of one."""

    name: str
    """Its type and place in the order of calls, as the study's tables have it: 'Linear-1'."""
    module: str
    """Its path within the model: 'encoder.0'."""
    output_shape: tuple[int, ...]
    """Without the batch."""
    parameters: int
    parameter_bytes: int
    activation_bytes: int
    flops: int
    """Forward."""


@dataclass(frozen=True)
class Counts:
    """The layers in the order of their calls, and flops that also include what lies between them."""

    layers: tuple[Layer, ...]
    forward_flops: int
    training_flops: int
    device: str


def count(workload: Workload) -> Counts:
    """On the meta device; on the CPU with one real sample only where the model cannot run without numbers."""
    try:
        return _count_on("meta", workload)
    except Exception:  # whatever a model does with real numbers only; if it fails on the CPU too, that is its error
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
        watch = _Watch(model, counter)
        with watch:
            outputs = model(watch.keep(workload.example(1, device)))
        forward_flops = counter.get_total_flops()
        if any(parameter.requires_grad for parameter in model.parameters()):
            outputs.sum().backward()
        return Counts(watch.layers(), forward_flops, counter.get_total_flops(), device)


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """The counter sees plain operators only, not the fused kernels for attention and recurrent layers."""
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
class _Call:
    module: nn.Module
    flops_before: int
    flops_inside: int = 0
    """Of the calls within this one."""


class _Watch(ExitStack):
    """Follows the calls of a model's modules; `layers` tells what they were."""

    def __init__(self, model: nn.Module, counter: FlopCounterMode) -> None:
        super().__init__()
        self.paths = {module: path for path, module in model.named_modules()}
        self.counter = counter
        self.open: list[_Call] = []
        self.done: list[tuple[nn.Module, list[Tensor], int, int]] = []
        # Kept alive, because a freed tensor's address may be another's soon.
        self.seen: list[Tensor] = []
        self.storages: set[int] = set()

    def __enter__(self) -> _Watch:
        for module in self.paths:
            self.callback(module.register_forward_pre_hook(self._enters).remove)
            self.callback(module.register_forward_hook(self._leaves).remove)
        return self

    def keep(self, tensor: Tensor) -> Tensor:
        """Remembers that this memory has been counted."""
        self.seen.append(tensor)
        self.storages.add(_storage(tensor))
        return tensor

    def _enters(self, module: nn.Module, _inputs: Any) -> None:
        self.open.append(_Call(module, self.counter.get_total_flops()))

    def _leaves(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        call = self.open.pop()
        flops = self.counter.get_total_flops() - call.flops_before
        if self.open:
            self.open[-1].flops_inside += flops
        tensors = list(_tensors(outputs))
        # A view of the input, or a child's output handed on, takes no memory of its own.
        fresh = [tensor for tensor in tensors if _storage(tensor) not in self.storages]
        fresh_bytes = sum({_storage(tensor): tensor.nbytes for tensor in fresh}.values())
        for tensor in tensors:
            self.keep(tensor)
        self.done.append((module, tensors, fresh_bytes, flops - call.flops_inside))

    def layers(self) -> tuple[Layer, ...]:
        """Innermost modules that made something, and any other that computes or holds parameters itself."""
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
        """Each parameter once, with the module that was called for it: its own, or the nearest around it."""
        called = Counter(module for module, *_ in self.done)
        at = {path: module for module, path in self.paths.items()}
        held: dict[nn.Module, list[nn.Parameter]] = {}
        counted: set[nn.Parameter] = set()
        for path, module in at.items():
            while at[path] not in called:
                path = path.rpartition(".")[0]
            for parameter in module.parameters(recurse=False):
                if parameter not in counted:
                    counted.add(parameter)
                    held.setdefault(at[path], []).append(parameter)
        return held


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """Those of a tensor, a sequence or a mapping (as transformers' outputs are)."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list, dict)):
        for part in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from _tensors(part)
