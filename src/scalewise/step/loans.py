"""Parameters that live in host memory and are lent to a device, each only while something there computes with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward, saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from scalewise.step.clock import Clock
from scalewise.step.copies import Copied, Copier, Fetched
from scalewise.step.flat import trainable, views_of

Use = tuple[int, ...]
"""The parameters, by number, that one operation reads."""

_SAYS_NO_VALUE = {
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
_VIEWS = {"data", "T", "mT", "H", "mH", "real", "imag"}


class Loans:
    """Watches which parameters operations read, fetches them, and gives them back when the next ones are read.

        forward   [0] fetch 1 | [1] fetch 2, drop 0 | [2] drop 1 | backward   [2] fetch 1 | [1] drop 2 ...

    What will be read next is known from the pass before. Operations are watched, not modules: tied weights, modules
    called twice and weights that another module reads need no care. Autograd is handed a number instead of the weight
    that it wants to keep, and the weight itself when it asks.
    """

    def __init__(self, model: nn.Module, weights: Tensor, device: torch.device, copier: Copier, ahead: int) -> None:
        """`weights` are all parameters end to end, in host memory."""
        self.parameters = trainable(model)
        self.numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self.host = views_of(weights, self.parameters)
        # Reading one that was not fetched shows as a NaN loss; the shape is right and takes no memory.
        nothing = torch.full((), torch.nan, dtype=weights.dtype, device=device)
        self.absent = [nothing.expand(parameter.shape) for parameter in self.parameters]
        self.copier = copier
        self.ahead = ahead
        self.copied = Copied()
        self.clock: Clock | None = None
        self.held: dict[int, Fetched] = {}
        self.numbers_by_address: dict[int, int] = {}
        self.orders: dict[str, list[Use]] = {}
        self.stage = ""
        self.expected: list[Use] = []
        self.seen: list[Use] = []
        self.opened: AbstractContextManager[None] | None = None
        self.is_open = False
        self._lend_to_calls_of(model)

    @contextmanager
    def open(self) -> Iterator[None]:
        """In here the parameters are on the device when read; outside they are the host's."""
        self.is_open = True
        for parameter, absent in zip(self.parameters, self.absent, strict=True):
            parameter.data = absent
        try:
            with saved_tensors_hooks(self._pack, self._unpack), _Watch(self):
                yield
        finally:
            self.drop_all()
            for parameter, host in zip(self.parameters, self.host, strict=True):
                parameter.data = host
            self.is_open = False

    def begin(self, stage: str, clock: Clock | None = None) -> None:
        """A pass that reads parameters in an order of its own; copies are told to the clock, and counted, if there is
        one."""
        self.drop_all()
        self.stage, self.clock = stage, clock
        self.expected, self.seen = self.orders.get(stage, []), []
        self.orders[stage] = self.seen
        for use in self.expected[: self.ahead]:
            self._fetch_missing(use)
        self._lap("pull")

    def backward(self, loss: Tensor) -> None:
        """As `loss.backward()`, which would hide from the watch what runs in it: forward, where that is run again."""
        _engine_run_backward(
            (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    def read(self, use: Use) -> None:
        """Have `use` on the device, and what comes next on its way there."""
        position = len(self.seen)
        self.seen.append(use)
        as_expected = self.expected[position : position + 1] == [use]
        coming = self.expected[position + 1 : position + 1 + self.ahead] if as_expected else []
        wanted = dict.fromkeys([*use, *(number for later in coming for number in later)])
        for number in self.held.keys() - wanted.keys():
            self._drop(number)
        self._lap(self.stage)
        self.copier.pace()
        self._fetch_missing(wanted)
        for number in use:
            self.copier.arrive(self.held[number])
        self._lap("pull")

    @contextmanager
    def lent(self, use: Use) -> Iterator[None]:
        self.read(use)
        for number in use:
            self.parameters[number].data = self.held[number].tensor
        try:
            yield
        finally:
            for number in use:
                self.parameters[number].data = self.absent[number]

    def used_in(self, values: Iterable[Any]) -> Iterator[int]:
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from self.used_in(value)
            elif (number := self.numbers.get(id(value))) is not None:
                yield number

    def drop_all(self) -> None:
        for number in list(self.held):
            self._drop(number)

    def _fetch_missing(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.held:
                continue
            source = self.host[number]
            fetched = self.held[number] = self.copier.fetch(source)
            if self.clock:
                self.copied.fetched_bytes += source.nbytes
            if source.numel():
                self.numbers_by_address[fetched.tensor.data_ptr()] = number

    def _lap(self, phase: str) -> None:
        if self.clock:
            self.clock.lap(phase)

    def _drop(self, number: int) -> None:
        """Whoever still computes with it, or has a view of it, holds the memory until then."""
        self.numbers_by_address.pop(self.held.pop(number).tensor.data_ptr(), None)

    def _pack(self, tensor: Tensor) -> _Reference | tuple[Tensor, int]:
        if tensor.layout == torch.strided:
            number = self.numbers_by_address.get(tensor.untyped_storage().data_ptr())
            if number is not None and tensor.dtype == self.host[number].dtype:
                return _Reference(number, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor, tensor._version

    def _unpack(self, packed: _Reference | tuple[Tensor, int]) -> Tensor:
        if isinstance(packed, _Reference):
            self.read((packed.number,))
            return self.held[packed.number].tensor.as_strided(packed.size, packed.stride, packed.offset)
        tensor, version = packed
        if tensor._version != version:  # autograd does not check what hooks give it
            raise RuntimeError("a tensor that backward needs has been modified by an inplace operation")
        return tensor

    def _lend_to_calls_of(self, model: nn.Module) -> None:
        """Whoever calls the model outside of a step, to evaluate it, need not know where its weights are."""
        loans = weakref.proxy(self)

        def before(*_: object) -> None:
            if not loans.is_open:
                loans.opened = loans.open()
                loans.opened.__enter__()
                loans.begin("forward")

        def after(*_: object) -> None:
            if loans.opened:
                opened, loans.opened = loans.opened, None
                opened.__exit__(None, None, None)

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after, always_call=True)


@dataclass(frozen=True)
class _Reference:
    """A view of a parameter, as autograd keeps it from forward to backward."""

    number: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Watch(TorchFunctionMode):
    """Sees every operation that is called with a parameter."""

    def __init__(self, loans: Loans) -> None:
        super().__init__()
        self.loans = loans

    def __torch_function__(
        self, function: Callable[..., Any], _: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        use = tuple(dict.fromkeys(self.loans.used_in((*args, *kwargs.values()))))
        if not use or not _reads_values(function):
            return function(*args, **kwargs)
        with self.loans.lent(use):
            return function(*args, **kwargs)


def _reads_values(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    if name == "__get__":  # an attribute: its own name is one further in
        return getattr(getattr(function, "__self__", None), "__name__", "") in _VIEWS
    return name not in _SAYS_NO_VALUE
