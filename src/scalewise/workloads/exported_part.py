"""One part of a model that torch.export cut: a graph for training and, as a graph does one thing only, one without."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn


class Piece:
    """A call in a graph of parts: takes what crosses the cut before it, by name, gives what crosses the one behind."""

    def __init__(self, module: nn.Module, call: fx.Node, takes: list[str], gives: list[str]) -> None:
        self.module = module
        self.arguments = [each.name for each in call.all_input_nodes]
        self.makes: dict[str, Any] = {call.name: None} | {
            user.name: user.args[1] for user in call.users if user.target is operator.getitem
        }
        self.takes, self.gives = takes, gives

    def __call__(self, value: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        known = dict(zip(self.takes, (value,) if isinstance(value, Tensor) else value, strict=True))
        made = self.module(*(known[name] for name in self.arguments))
        known |= {name: made if at is None else made[at] for name, at in self.makes.items()}
        given = tuple(known[name] for name in self.gives)
        return given[0] if len(given) == 1 else given


class ExportedPart(nn.Module):
    """Trains with the one piece, whose tensors it lends to the other while it is evaluated."""

    def __init__(self, trained: Piece, evaluated: Piece, whole: Mapping[str, Tensor]) -> None:
        """`whole`: the model's tensors by name, of which an export may have copies."""
        super().__init__()
        self.exported = trained.module
        self.pieces = {True: trained, False: evaluated}
        self.lent: list[tuple[nn.Module, str, str]] = []
        """Modules of the second, the names of their tensors, and where those are here."""
        here = {id(whole.get(name, tensor)): f"exported.{name}" for name, tensor in tensors_of(self.exported)}
        for number, (path, tensor) in enumerate(tensors_of(evaluated.module)):
            key = id(whole.get(path, tensor))
            if key not in here:  # a constant that the export made
                here[key] = f"constant_{number}"
                self.register_buffer(here[key], tensor.detach(), persistent=False)
            inner, _, name = path.rpartition(".")
            self.lent.append((evaluated.module.get_submodule(inner), name, here[key]))
        self._lend({})

    def train(self, mode: bool = True) -> ExportedPart:
        super().train(mode)
        self._lend({} if mode else dict(tensors_of(self)))
        return self

    def forward(self, value: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        return self.pieces[self.training](value)

    def _lend(self, tensors: dict[str, Tensor]) -> None:
        for module, name, at in self.lent:
            store: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
            store[name] = tensors.get(at)


def is_evaluated_alike(trained: nn.Module, evaluated: nn.Module, whole: Mapping[str, Tensor]) -> bool:
    """Whether all weights that the second computes with are the first's too."""
    here = {id(whole.get(name, tensor)) for name, tensor in tensors_of(trained)}
    return all(id(whole.get(name, each)) in here for name, each in evaluated.named_parameters(remove_duplicate=False))


def tensors_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, under each of their names."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
