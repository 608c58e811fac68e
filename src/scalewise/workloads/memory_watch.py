"""When memory comes and goes in a step that is run on tensors without numbers, and which layer was at work then."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from scalewise.prediction.held import LayerMemory, Made
from scalewise.workloads.convolution_memory import Copied
from scalewise.workloads.library_memory import Libraries


@dataclass(frozen=True)
class _Moment:
    bytes: int = 0
    of: Made = ()
    """Other layers' part of it, and copies that the layer's own operation makes of what it puts out."""
    copied: int = 0
    """Such copies of what it takes in."""
    gone: int = 0
    """Of what the layer put out and kept, no longer there."""


class Watch(TorchDispatchMode):
    """Writes it down; `layers` tells what each keeps, and needs at most."""

    def __init__(self, model: nn.Module, batch: list[Tensor], libraries: Libraries) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.libraries = libraries
        self.library_bytes: dict[int, int] = {}
        """That stay from then on, by layer."""
        self.paths: list[str] = []
        """Of the layers, in the order of their calls."""
        self.at = 0
        self.events: list[tuple[int, int, int]] = []
        """(number of a piece of memory, its bytes or minus them, layer at work)."""
        self.turned = 0
        """Events before backward."""
        self.numbers: dict[int, int] = {}
        """Of the pieces that are there now, by address."""
        self.given: dict[int, list[int]] = {}
        """Pieces that hold what modules put out which end with a layer."""
        self.followed: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        """Versions of tensors whose gradients tell where backward is: what is written to in place is then another."""
        self.known = {_storage(each)._cdata for each in [*model.parameters(), *model.buffers(), *batch]}
        self.gradients: set[int] = set()
        self.copies: dict[int, Copied] = {}
        """Pieces that no tensor shows, there while an operation runs."""
        for path, module in model.named_modules():
            if next(module.children(), None) is None:
                module.register_forward_pre_hook(lambda _, inputs, path=path: self._take(path, inputs))
                module.register_forward_hook(lambda _, __, outputs: self._leave(outputs))
            module.register_forward_hook(lambda _, __, outputs: self._give(outputs))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._complete)

    def enter(self, path: str) -> None:
        self.paths.append(path)
        self.at = len(self.paths) - 1

    def turn(self) -> None:
        self.turned = len(self.events)

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.libraries.whole(function, args, function(*args, **(kwargs or {})))
        for tensor in _tensors(result):
            storage = _storage(tensor)
            address, nbytes = storage._cdata, storage.nbytes()
            if address not in self.numbers and address not in self.known:
                number = self.numbers[address] = len(self.events)
                self.events.append((number, nbytes, self.at))
                weakref.finalize(storage, self._gone, address, number, nbytes).atexit = False
        if kept := self.libraries.kept(function):
            self.library_bytes[self.at] = kept
        layer = self.paths[self.at] if self.paths else ""
        if copied := sum(kinds := self.libraries.copied(function, args, result, layer)):
            number = len(self.events)
            self.copies[number] = kinds
            self.events += [(number, copied, self.at), (number, -copied, self.at)]
        return result

    def _gone(self, address: int, number: int, nbytes: int) -> None:
        del self.numbers[address]
        self.events.append((number, -nbytes, self.at))

    def _take(self, path: str, inputs: Any) -> None:
        """What functions make of a layer's outputs, and others take in, is that layer's too."""
        for tensor in _tensors(inputs):
            if tensor.requires_grad and self.followed.get(tensor) != tensor._version:
                made = self.numbers.get(_storage(tensor)._cdata)
                self._follow(tensor, self.events[made][2] if made is not None else self.at)
        self.enter(path)

    def _leave(self, outputs: Any) -> None:
        for tensor in _tensors(outputs):
            if tensor.requires_grad:
                self._follow(tensor, self.at)

    def _follow(self, tensor: Tensor, layer: int) -> None:
        """Backward is in this layer from when the gradient of what it puts out is complete."""
        self.followed[tensor] = tensor._version
        tensor.register_hook(lambda _: self._back_in(layer))

    def _give(self, outputs: Any) -> None:
        addresses = {_storage(tensor)._cdata for tensor in _tensors(outputs)}
        self.given[self.at] = [self.numbers[address] for address in addresses if address in self.numbers]

    def _back_in(self, layer: int) -> None:
        self.at = layer

    def _complete(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        number = self.numbers.get(_storage(parameter.grad)._cdata)
        if number is not None:  # else it is a parameter's or a sample's memory, in use already
            self.gradients.add(number)

    def layers(self, model: nn.Module) -> tuple[LayerMemory, ...]:
        made_in: dict[int, int] = {}
        size: dict[int, int] = {}
        kept = [0] * len(self.paths)
        for number, nbytes, layer in self.events[: self.turned]:
            kept[made_in.setdefault(number, layer)] += nbytes
            size[number] = size.get(number, 0) + nbytes
        kept_outputs = [[each for each in self.given.get(at, []) if size.get(each)] for at in range(len(kept))]
        most = self._most(kept, kept_outputs)
        held = self._held_by(model)
        return tuple(
            LayerMemory(
                path,
                tuple(nbytes for nbytes, _ in held[at].trained),
                kept[at],
                most[0][at].bytes,
                most[1][at].bytes,
                held[at].buffer_bytes + sum(nbytes for nbytes, _ in held[at].still),
                most[0][at].of,
                most[1][at].of,
                (most[0][at].copied, most[1][at].copied),
                sum(self.events[number][1] for number in self.given.get(at, []) if not size.get(number)),
                tuple((made_in[number], self.events[number][1]) for number in self.given.get(at, [])),
                tuple(rows for _, rows in held[at].trained),
                tuple(held[at].still),
                most[1][at].gone,
                self.library_bytes.get(at, 0),
            )
            for at, path in enumerate(self.paths)
        )

    def _most(self, kept: list[int], kept_outputs: list[list[int]]) -> list[list[_Moment]]:
        """Of forward and of backward in every layer, when there is the most beyond what the layers so far keep."""
        up_to = list(accumulate(kept))
        most = [[_Moment()] * len(self.paths), [_Moment()] * len(self.paths)]
        made_in: dict[int, int] = {}
        live = [0] * len(self.paths)
        there: set[int] = set()
        total = 0
        for position, (number, nbytes, layer) in enumerate(self.events):
            if number not in self.gradients:  # which are counted by who knows how long they stay
                total += nbytes
                live[made_in.setdefault(number, layer)] += nbytes
            (there.add if nbytes > 0 else there.discard)(number)
            way = most[position >= self.turned]
            if nbytes > 0 and total - up_to[layer] > way[layer].bytes:
                beyond = (
                    has - (keeps if at <= layer else 0) for at, (has, keeps) in enumerate(zip(live, kept, strict=True))
                )
                made = [(at, more) for at, more in enumerate(beyond) if more and at != layer]
                copied = self.copies.get(number, Copied())
                if copied.of_given:
                    made.append((layer, copied.of_given))
                gone = sum(self.events[each][1] for each in kept_outputs[layer] if each not in there)
                way[layer] = _Moment(total - up_to[layer], tuple(made), copied.of_taken, gone)
        return most

    def _held_by(self, model: nn.Module) -> list[_Own]:
        """Each parameter and buffer once, with the first layer that is, or is within, the module that has it, or the
        nearest around that."""
        held = [_Own() for _ in self.paths]
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            own = held[self._layer_of(name.rpartition(".")[0])]
            nbytes = tensor.nbytes
            if not isinstance(tensor, nn.Parameter):
                own.buffer_bytes += nbytes
            else:
                learns = tensor.requires_grad and tensor.grad is not None
                (own.trained if learns else own.still).append((nbytes, tensor.shape[0] if tensor.dim() else 1))
        return held

    def _layer_of(self, owner: str) -> int:
        while owner:
            for number, path in enumerate(self.paths):
                if f"{path}.".startswith(f"{owner}."):
                    return number
            owner = owner.rpartition(".")[0]
        return 0


@dataclass
class _Own:
    """A layer's tensors: bytes and first dimension of each parameter that a step changes, and that none does."""

    trained: list[tuple[int, int]] = field(default_factory=list)
    still: list[tuple[int, int]] = field(default_factory=list)
    buffer_bytes: int = 0


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _tensors(result: Any) -> Iterable[Tensor]:
    return (each for each in tree_leaves(result) if isinstance(each, Tensor))
