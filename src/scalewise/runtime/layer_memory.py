"""Memory of every layer: activations kept for backward, and workspaces while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from scalewise.data.dataset import Data
from scalewise.models.workload import Workload
from scalewise.runtime.workspace_memory import Workspaces
from scalewise.strategies.rank_memory import BytesByLayer, LayerMemory


@dataclass(frozen=True)
class _Peak:
    """Peak memory of forward or backward of one layer."""

    bytes: int = 0
    """Bytes beyond the activations kept by this layer and by those before it."""
    by_other_layers: BytesByLayer = ()
    """Bytes in `bytes` that other layers allocated."""
    workspace_bytes: int = 0
    """Workspace of the running operation, beyond `bytes`."""
    freed_output_bytes: int = 0
    """Bytes of the layer's kept output that are already freed."""


class MemoryTrace(TorchDispatchMode):
    """Records allocations and frees of storages during one step; `layers` computes the memory of every layer."""

    def __init__(self, model: nn.Module, batch: list[Tensor], workspaces: Workspaces) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.workspaces = workspaces
        self.libraries: dict[int, dict[str, int]] = {}
        """Bytes that libraries keep: layer -> purpose -> bytes."""
        self.paths: list[str] = []
        """Module paths of the layers, in the order of their calls."""
        self.running_layer = 0
        """Position in `paths` of the layer that is running forward or backward."""
        self.events: list[tuple[int, int, int]] = []
        """(storage number, bytes, running layer): positive bytes for an allocation, negative bytes for a free."""
        self.backward_start = 0
        """Number of events before backward."""
        self.storage_numbers: dict[int, int] = {}
        """Address -> number of the storages that are allocated now."""
        self.outputs: dict[int, list[int]] = {}
        """Layer -> storages of the outputs of the modules that end with this layer."""
        self.hooked_versions: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        """Versions of tensors with a gradient hook; a tensor that was changed in place needs another hook."""
        self.existing = {_storage(tensor)._cdata for tensor in [*model.parameters(), *model.buffers(), *batch]}
        """Addresses of the storages that exist before the step."""
        self.gradients: set[int] = set()
        """Storages of gradients of parameters."""
        self.event_workspaces: dict[int, int] = {}
        """Position in `events` -> workspace bytes of the operation that has just ended."""
        for path, module in model.named_modules():
            if next(module.children(), None) is None:
                module.register_forward_pre_hook(lambda _, inputs, path=path: self._before_layer(path, inputs))
                module.register_forward_hook(lambda _, __, outputs: self._after_layer(outputs))
            module.register_forward_hook(lambda _, __, outputs: self._record_outputs(outputs))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._record_gradient)

    def enter_layer(self, path: str) -> None:
        self.paths.append(path)
        self.running_layer = len(self.paths) - 1

    def start_backward(self) -> None:
        self.backward_start = len(self.events)

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        measured = self.workspaces.of_call(function, args)
        result = _resized(function(*args, **(kwargs or {})), measured.result_bytes)
        for tensor in _tensors(result):
            storage = _storage(tensor)
            address, nbytes = storage._cdata, storage.nbytes()
            if address not in self.storage_numbers and address not in self.existing:
                number = self.storage_numbers[address] = len(self.events)
                self.events.append((number, nbytes, self.running_layer))
                weakref.finalize(storage, self._record_free, address, number, nbytes).atexit = False
        self.libraries.setdefault(self.running_layer, {}).update(self.workspaces.kept_by(function, args))
        if measured.workspace_bytes:
            self.event_workspaces[len(self.events)] = measured.workspace_bytes
            self.events.append((len(self.events), 0, self.running_layer))
        return result

    def _record_free(self, address: int, number: int, nbytes: int) -> None:
        del self.storage_numbers[address]
        self.events.append((number, -nbytes, self.running_layer))

    def _before_layer(self, path: str, inputs: Any) -> None:
        """Enter a layer. Backward of functions between two layers counts for the layer before them."""
        for tensor in _tensors(inputs):
            if tensor.requires_grad and self.hooked_versions.get(tensor) != tensor._version:
                number = self.storage_numbers.get(_storage(tensor)._cdata)
                self._hook_gradient(tensor, self.events[number][2] if number is not None else self.running_layer)
        self.enter_layer(path)

    def _after_layer(self, outputs: Any) -> None:
        for tensor in _tensors(outputs):
            if tensor.requires_grad:
                self._hook_gradient(tensor, self.running_layer)

    def _hook_gradient(self, tensor: Tensor, layer: int) -> None:
        """Backward of a layer starts when the gradient of its output is complete."""
        self.hooked_versions[tensor] = tensor._version
        tensor.register_hook(lambda _: self._enter_backward(layer))

    def _record_outputs(self, outputs: Any) -> None:
        addresses = {_storage(tensor)._cdata for tensor in _tensors(outputs)}
        self.outputs[self.running_layer] = [
            self.storage_numbers[address] for address in addresses if address in self.storage_numbers
        ]

    def _enter_backward(self, layer: int) -> None:
        self.running_layer = layer

    def _record_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        number = self.storage_numbers.get(_storage(parameter.grad)._cdata)
        if number is not None:  # otherwise the storage existed before the step
            self.gradients.add(number)

    def layers(self, model: nn.Module) -> tuple[LayerMemory, ...]:
        """Return the memory of every layer, in the order of calls."""
        allocated_by: dict[int, int] = {}
        size: dict[int, int] = {}
        kept = [0] * len(self.paths)
        for number, nbytes, layer in self.events[: self.backward_start]:
            kept[allocated_by.setdefault(number, layer)] += nbytes
            size[number] = size.get(number, 0) + nbytes
        kept_outputs = [[number for number in self.outputs.get(at, []) if size.get(number)] for at in range(len(kept))]
        forward, backward = self._peaks(kept, kept_outputs)
        tensors = self._tensors_by_layer(model)
        return tuple(
            LayerMemory(
                path,
                tuple(nbytes for nbytes, _ in tensors[at].trained),
                kept[at],
                forward[at].bytes,
                backward[at].bytes,
                tensors[at].buffer_bytes + sum(nbytes for nbytes, _ in tensors[at].frozen),
                forward[at].by_other_layers,
                backward[at].by_other_layers,
                (forward[at].workspace_bytes, backward[at].workspace_bytes),
                sum(self.events[number][1] for number in self.outputs.get(at, []) if not size.get(number)),
                tuple((allocated_by[number], self.events[number][1]) for number in self.outputs.get(at, [])),
                tuple(rows for _, rows in tensors[at].trained),
                tuple(tensors[at].frozen),
                backward[at].freed_output_bytes,
                tuple(self.libraries.get(at, {}).items()),
            )
            for at, path in enumerate(self.paths)
        )

    def _peaks(self, kept: list[int], kept_outputs: list[list[int]]) -> tuple[list[_Peak], list[_Peak]]:
        """Return the peaks of forward and of backward of every layer."""
        kept_so_far = list(accumulate(kept))
        forward, backward = [_Peak()] * len(self.paths), [_Peak()] * len(self.paths)
        allocated_by: dict[int, int] = {}
        bytes_of = [0] * len(self.paths)
        allocated: set[int] = set()
        total = 0
        for position, (number, nbytes, layer) in enumerate(self.events):
            if number not in self.gradients:  # gradients are added later: how long they exist depends on the strategy
                total += nbytes
                bytes_of[allocated_by.setdefault(number, layer)] += nbytes
            (allocated.add if nbytes > 0 else allocated.discard)(number)
            peaks = backward if position >= self.backward_start else forward
            workspace = self.event_workspaces.get(position, 0)
            beyond_kept = total - kept_so_far[layer]
            if nbytes >= 0 and beyond_kept + workspace > peaks[layer].bytes + peaks[layer].workspace_bytes:
                by_layer = [
                    (at, present - (keeps if at <= layer else 0))
                    for at, (present, keeps) in enumerate(zip(bytes_of, kept, strict=True))
                ]
                others = tuple((at, more) for at, more in by_layer if more and at != layer)
                freed = sum(self.events[output][1] for output in kept_outputs[layer] if output not in allocated)
                peaks[layer] = _Peak(beyond_kept, others, workspace, freed)
        return forward, backward

    def _tensors_by_layer(self, model: nn.Module) -> list[_LayerTensors]:
        """Assign every parameter and buffer to one layer: the first one that is its module or lies within it.

        If no layer does, the enclosing modules are tried, from the nearest one outwards.
        """
        by_layer = [_LayerTensors() for _ in self.paths]
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            own = by_layer[self._layer_of(name.rpartition(".")[0])]
            nbytes = tensor.nbytes
            if not isinstance(tensor, nn.Parameter):
                own.buffer_bytes += nbytes
            else:
                learns = tensor.requires_grad and tensor.grad is not None
                (own.trained if learns else own.frozen).append((nbytes, tensor.shape[0] if tensor.dim() else 1))
        return by_layer

    def _layer_of(self, owner: str) -> int:
        while owner:
            for number, path in enumerate(self.paths):
                if f"{path}.".startswith(f"{owner}."):
                    return number
            owner = owner.rpartition(".")[0]
        return 0


@dataclass
class _LayerTensors:
    """Parameters and buffers of one layer."""

    trained: list[tuple[int, int]] = field(default_factory=list)
    """(bytes, first dimension) of each parameter that the step updates."""
    frozen: list[tuple[int, int]] = field(default_factory=list)
    """(bytes, first dimension) of each parameter that the step does not update."""
    buffer_bytes: int = 0


def _resized(result: Any, real_bytes: tuple[int, ...]) -> Any:
    """Replace tensors of raw bytes by tensors of the measured size, which tracing does not know.

    An example is the workspace that oneDNN keeps for the backward of an LSTM.
    """
    if not real_bytes:
        return result
    sizes = iter(real_bytes)
    return tree_map(lambda value: _with_bytes(value, next(sizes)), result)


def _with_bytes(value: Any, nbytes: int) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.uint8 and value.nbytes != nbytes:
        return value.new_empty(nbytes)
    return value


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _tensors(result: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))


NEEDS_VALUES = (RuntimeError, TypeError, ValueError, AssertionError)
"""Errors of torch, numpy and Python when a model reads the values of tensors that have only a shape."""


def layers_of(
    workload: Workload,
    data: Data,
    samples: int,
    device: torch.device,
    precision: str = "fp32",
    *,
    with_workspaces: bool = True,
) -> tuple[LayerMemory, ...]:
    """Trace one step with `samples` samples as the device would run it. Empty if the model reads values of tensors.

    `with_workspaces`: measure the workspaces of libraries by running their operations once on the device.
    """
    shapes = [((samples, *tensor.shape), tensor.dtype) for tensor in data.example()]
    try:
        with torch.device("meta"):
            model = workload.model()
        with _without_values(device, precision) as place:
            _move(model, place)
            inputs, targets = (torch.empty(shape, dtype=dtype, device=place) for shape, dtype in shapes)
            workspaces = Workspaces(device, with_workspaces)
            trace = MemoryTrace(model, [inputs, targets], workspaces)
            with workspaces, trace, _Attention(device):
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    outputs = model(inputs)
                    trace.enter_layer("")
                    loss = workload.loss(outputs, targets)
                trace.start_backward()
                loss.backward()
    except NEEDS_VALUES:  # the run reports that memory is not planned
        return ()
    return trace.layers(model)


@contextmanager
def _without_values(device: torch.device, precision: str) -> Iterator[torch.device]:
    """Return the device for tensors that have a shape and no values.

    Torch runs recurrent layers as a CPU does, and casts to bf16, only for fake tensors on that device. Fake tensors on
    a GPU need a GPU; without one, the meta device is used.
    """
    if device.type == "cuda" and not (precision == "bf16" and torch.cuda.is_available()):
        yield torch.device("meta")
        return
    with FakeTensorMode():
        yield device


def _move(model: nn.Module, place: torch.device) -> None:
    """Replace parameters and buffers by empty tensors on another device.

    `nn.Module.to` refuses this for fake tensors that other objects refer to.
    """
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
    """Computes attention with the device's fused kernel; without values, torch would allocate the whole matrix."""

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
