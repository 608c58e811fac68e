"""Copies between host memory and a device; parameters fetched from host memory for each layer."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward, saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from scalewise.models.parameters import trainable, views_of
from scalewise.runtime.clock import Clock


@dataclass
class Copied:
    """Number of bytes copied between host memory and the device."""

    fetched_bytes: int = 0
    given_bytes: int = 0
    steps: int = 0

    @property
    def per_step(self) -> float:
        return (self.fetched_bytes + self.given_bytes) / self.steps


@dataclass
class Fetched:
    """Copy of a tensor on the device; complete when the event `ready` has occurred."""

    tensor: Tensor
    ready: torch.cuda.Event | None = None


class Copier(Protocol):
    """Copies tensors between host memory and a device.

    `fetch` starts a copy to the device and `arrive` makes the computation wait for it; `give` copies a gradient to host
    memory.
    """

    def pace(self) -> None:
        """Wait until the device is at most a few fetches behind this process; called before every fetch."""
        ...

    def fetch(self, source: Tensor) -> Fetched: ...
    def arrive(self, fetched: Fetched) -> None: ...
    def give(self, gradient: Tensor, target: Tensor, *, add: bool) -> None: ...
    def given(self) -> None:
        """Make the computation wait for all copies to host memory."""
        ...

    def settle(self) -> None:
        """Block this process until all copies to host memory are complete."""
        ...


class CoreCopier:
    """Copier of a CPU device: copies with the core that also computes, so that nothing overlaps."""

    def pace(self) -> None:
        """Do nothing: copies are synchronous."""

    def fetch(self, source: Tensor) -> Fetched:
        return Fetched(source.clone())

    def arrive(self, fetched: Fetched) -> None:
        """Do nothing: copies are synchronous."""

    def give(self, gradient: Tensor, target: Tensor, *, add: bool) -> None:
        if add:
            target.add_(gradient)
        else:
            target.copy_(gradient)

    def given(self) -> None:
        """Do nothing: copies are synchronous."""

    settle = given


class StreamCopier:
    """Copier of a GPU, with a stream for each direction.

    Memory that the GPU still uses cannot be reused, so the memory needed grows with the number of fetches issued ahead
    of the GPU. `pace` limits this number.
    """

    MAX_AHEAD = 2

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.incoming, self.outgoing = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.uses: deque[torch.cuda.Event] = deque()
        self.leaving: deque[torch.cuda.Event] = deque()

    def pace(self) -> None:
        _limit_pending(self.MAX_AHEAD, self.uses, torch.cuda.current_stream(self.device))

    def fetch(self, source: Tensor) -> Fetched:
        with torch.cuda.stream(self.incoming):
            copy = torch.empty(source.shape, dtype=source.dtype, device=self.device)
            copy.copy_(source, non_blocking=True)
            return Fetched(copy, self.incoming.record_event())

    def arrive(self, fetched: Fetched) -> None:
        computing = torch.cuda.current_stream(self.device)
        if fetched.ready:
            computing.wait_event(fetched.ready)
            fetched.tensor.record_stream(
                computing
            )  # its memory is not reused before the computation has finished with it
            fetched.ready = None

    def give(self, gradient: Tensor, target: Tensor, *, add: bool) -> None:
        self.outgoing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.outgoing):
            if add:
                gradient.add_(target.to(self.device, non_blocking=True))
            target.copy_(gradient, non_blocking=True)
        gradient.record_stream(self.outgoing)
        _limit_pending(self.MAX_AHEAD, self.leaving, self.outgoing)

    def given(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.outgoing)

    def settle(self) -> None:
        self.outgoing.synchronize()


def _limit_pending(limit: int, events: deque[torch.cuda.Event], stream: torch.cuda.Stream) -> None:
    """Record an event and wait for the one recorded `limit` calls ago."""
    events.append(stream.record_event())
    if len(events) > limit:
        events.popleft().synchronize()


def make_copier(device: torch.device) -> Copier:
    return StreamCopier(device) if device.type == "cuda" else CoreCopier()


Use = tuple[int, ...]
"""Numbers of the parameters that one operation reads."""

_READS_NO_VALUES = {
    "size",
    "dim",
    "numel",
    "nelement",
    "ndimension",
    "element_size",
    "is_floating_point",
    "__len__",
    "__set__",
}
_VIEW_ATTRIBUTES = {"data", "T", "mT", "H", "mH", "real", "imag"}


class Loans:
    """Keeps parameters in host memory and fetches each one to the device just before an operation reads it.

        forward   [0] fetch 1 | [1] fetch 2, drop 0 | [2] drop 1 | backward   [2] fetch 1 | [1] drop 2 ...

    The order of the previous pass predicts which parameters are read next, so that they can be fetched ahead.
    Operations are intercepted instead of modules, so that tied weights, modules called twice and weights read by
    another module work. For backward, autograd saves the number of a parameter instead of its weight, and the weight is
    fetched again.
    """

    def __init__(self, model: nn.Module, weights: Tensor, device: torch.device, copier: Copier, ahead: int) -> None:
        """Take over the parameters of the model; `weights` contains all of them, concatenated, in host memory."""
        self.parameters = trainable(model)
        self.numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self.host = views_of(weights, self.parameters)
        # Placeholder with the right shape that needs no memory; reading it by mistake gives a NaN loss.
        placeholder = torch.full((), torch.nan, dtype=weights.dtype, device=device)
        self.absent = [placeholder.expand(parameter.shape) for parameter in self.parameters]
        self.copier = copier
        self.ahead = ahead
        self.copied = Copied()
        self.clock: Clock | None = None
        self.fetched: dict[int, Fetched] = {}
        self.numbers_by_address: dict[int, int] = {}
        self.orders: dict[str, list[Use]] = {}
        self.stage = ""
        self.expected: list[Use] = []
        self.reads: list[Use] = []
        self.opened: AbstractContextManager[None] | None = None
        self.is_open = False
        self._hook_forward(model)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Fetch parameters to the device when they are read in this block; outside they are in host memory."""
        self.is_open = True
        for parameter, absent in zip(self.parameters, self.absent, strict=True):
            parameter.data = absent
        try:
            with saved_tensors_hooks(self._pack, self._unpack), _Interceptor(self):
                yield
        finally:
            self.drop_all()
            for parameter, host in zip(self.parameters, self.host, strict=True):
                parameter.data = host
            self.is_open = False

    def begin(self, stage: str, clock: Clock | None = None) -> None:
        """Start a pass ('forward' or 'backward'), each with its own order of reads.

        With a clock, copies are counted and timed.
        """
        self.drop_all()
        self.stage, self.clock = stage, clock
        self.expected, self.reads = self.orders.get(stage, []), []
        self.orders[stage] = self.reads
        for use in self.expected[: self.ahead]:
            self._fetch_missing(use)
        self._lap("pull")

    def backward(self, loss: Tensor) -> None:
        """Run `loss.backward()`, intercepting its operations: activation checkpointing runs forward there."""
        _engine_run_backward(
            (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    def read(self, use: Use) -> None:
        """Wait until the parameters of `use` are on the device, and start to fetch the next ones."""
        position = len(self.reads)
        self.reads.append(use)
        as_expected = self.expected[position : position + 1] == [use]
        upcoming = self.expected[position + 1 : position + 1 + self.ahead] if as_expected else []
        wanted = dict.fromkeys([*use, *(number for later_use in upcoming for number in later_use)])
        for number in self.fetched.keys() - wanted.keys():
            self._drop(number)
        self._lap(self.stage)
        self.copier.pace()
        self._fetch_missing(wanted)
        for number in use:
            self.copier.arrive(self.fetched[number])
        self._lap("pull")

    @contextmanager
    def on_device(self, use: Use) -> Iterator[None]:
        """Put the fetched tensors into the parameters of `use` for one operation."""
        self.read(use)
        for number in use:
            self.parameters[number].data = self.fetched[number].tensor
        try:
            yield
        finally:
            for number in use:
                self.parameters[number].data = self.absent[number]

    def used_in(self, values: Iterable[Any]) -> Iterator[int]:
        """Yield the numbers of the parameters among the values, including those in lists and tuples."""
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from self.used_in(value)
            elif (number := self.numbers.get(id(value))) is not None:
                yield number

    def drop_all(self) -> None:
        for number in list(self.fetched):
            self._drop(number)

    def _fetch_missing(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.fetched:
                continue
            source = self.host[number]
            fetched = self.fetched[number] = self.copier.fetch(source)
            if self.clock:
                self.copied.fetched_bytes += source.nbytes
            if source.numel():
                self.numbers_by_address[fetched.tensor.data_ptr()] = number

    def _lap(self, phase: str) -> None:
        if self.clock:
            self.clock.lap(phase)

    def _drop(self, number: int) -> None:
        """Drop the fetched tensor; its memory is freed when no operation or view uses it any more."""
        self.numbers_by_address.pop(self.fetched.pop(number).tensor.data_ptr(), None)

    def _pack(self, tensor: Tensor) -> _Reference | tuple[Tensor, int]:
        if tensor.layout == torch.strided:
            number = self.numbers_by_address.get(tensor.untyped_storage().data_ptr())
            if number is not None and tensor.dtype == self.host[number].dtype:
                return _Reference(number, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor, tensor._version

    def _unpack(self, packed: _Reference | tuple[Tensor, int]) -> Tensor:
        if isinstance(packed, _Reference):
            self.read((packed.number,))
            return self.fetched[packed.number].tensor.as_strided(packed.size, packed.stride, packed.offset)
        tensor, version = packed
        if tensor._version != version:  # autograd does not check tensors that hooks return
            raise RuntimeError("a tensor that backward needs has been modified by an inplace operation")
        return tensor

    def _hook_forward(self, model: nn.Module) -> None:
        """Fetch parameters also when the model is called outside of a step, for example to evaluate it."""
        offloaded = weakref.proxy(self)

        def before(*_: object) -> None:
            if not offloaded.is_open:
                offloaded.opened = offloaded.open()
                offloaded.opened.__enter__()
                offloaded.begin("forward")

        def after(*_: object) -> None:
            if offloaded.opened:
                context, offloaded.opened = offloaded.opened, None
                context.__exit__(None, None, None)

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after, always_call=True)


@dataclass(frozen=True)
class _Reference:
    """View of a parameter that autograd saves for backward, without the data."""

    number: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Interceptor(TorchFunctionMode):
    """Intercepts every operation that is called with a parameter."""

    def __init__(self, offloaded: Loans) -> None:
        super().__init__()
        self.offloaded = offloaded

    def __torch_function__(
        self, function: Callable[..., Any], _: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        use = tuple(dict.fromkeys(self.offloaded.used_in((*args, *kwargs.values()))))
        if not use or not _reads_values(function):
            return function(*args, **kwargs)
        with self.offloaded.on_device(use):
            return function(*args, **kwargs)


def _reads_values(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    if name == "__get__":  # an attribute, whose name is that of the getter's object
        return getattr(getattr(function, "__self__", None), "__name__", "") in _VIEW_ATTRIBUTES
    return name not in _READS_NO_VALUES
