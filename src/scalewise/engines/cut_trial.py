"""A model with cut layers, tried on a few samples before it trains: does it compute the same, and what does it draw?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.strategies.cuts import Cut
from scalewise.workloads.chain import WEIGHED, example_of
from scalewise.workloads.outputs import one_tensor
from scalewise.workloads.same_numbers import largest_difference
from scalewise.workloads.unchanged import unchanged_buffers
from scalewise.workloads.workload import Workload

RULE = "what layers in columns= put out must go, through element-wise functions or whole heads, into layers in rows="
Apply = Callable[[nn.Module], None]
"""Cuts the layers of a model, for a part that adds nothing up."""


@dataclass
class Watched:
    """What happens in a model's forward: shapes of random numbers, and calls of cut layers."""

    draws: list[tuple[int, ...]] = field(default_factory=list)
    inside: list[bool] = field(default_factory=list)
    """Of each: whether it lies between columns and rows."""
    starts: set[str] = field(default_factory=set)
    """Columns that follow rows, or nothing."""
    follows: set[str] = field(default_factory=set)
    """Columns that follow columns."""
    outputs: tuple[int, ...] = ()
    between: bool = False

    def called(self, name: str, role: str) -> None:
        if role == "columns":
            (self.follows if self.between else self.starts).add(name)
        self.between = role == "columns"

    def drew(self, shape: tuple[int, ...]) -> None:
        self.draws.append(shape)
        self.inside.append(self.between)


class _Draws(TorchDispatchMode):
    def __init__(self, watched: Watched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watched = watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            made = result if isinstance(result, Tensor) else result[0]
            self.watched.drew(tuple(made.shape))
        return result


def draws_in_parts(workload: Workload, data: Data, cuts: Mapping[str, Cut], apply: Apply) -> frozenset[str]:
    """Layers in columns behind which, until the next in rows, every part is to draw random numbers of its own; none
    where a model draws none there. Refuses a model that fails with these layers cut, or that draws where neither is
    right. Found without numbers if the model can run without."""
    for device in ("meta", "cpu"):
        with torch.random.fork_rng(devices=[]):
            inputs = example_of(data, WEIGHED, device)
            try:
                with torch.device(device):
                    model = workload.model()
                whole = _watched(model, inputs, cuts)
            except (
                Exception
            ):  # whatever a model does with real numbers only; if it fails on the CPU too, it will say so
                continue
            apply(model)
            try:
                part = _watched(model, inputs, cuts)
            except Exception as error:  # whatever the model says to tensors of other sizes
                raise UserError(f"tensor: with these layers cut the model fails ({error}); {RULE}") from error
        if part.outputs != whole.outputs:
            raise UserError(
                f"tensor: with these layers cut the model puts out {part.outputs} instead of {whole.outputs}; {RULE}"
            )
        _refuse_mixed_draws(whole, part)
        return frozenset(part.starts) if any(part.inside) else frozenset()
    return frozenset()


def _watched(model: nn.Module, inputs: Tensor, cuts: Mapping[str, Cut]) -> Watched:
    watched = Watched()
    with ExitStack() as hooks, unchanged_buffers([model]), torch.no_grad(), _Draws(watched):
        for name, cut in cuts.items():
            hooks.callback(model.get_submodule(name).register_forward_hook(_told(watched, name, cut.role)).remove)
        watched.outputs = tuple(model(inputs).shape)
    return watched


def _told(watched: Watched, name: str, role: str) -> Callable[..., None]:
    return lambda *_: watched.called(name, role)


def _refuse_mixed_draws(whole: Watched, part: Watched) -> None:
    """Random numbers for what every part has some of are smaller there; others must be the same on all parts."""
    if len(whole.draws) != len(part.draws):
        raise UserError(
            f"tensor: with these layers cut the model draws random numbers (dropout) {len(part.draws)} times instead "
            f"of {len(whole.draws)}, and parts of it would drift apart; name other layers, or use another strategy"
        )
    for expected, found, inside in zip(whole.draws, part.draws, part.inside, strict=True):
        if inside and expected == found:
            raise UserError(
                f"tensor: between layers in columns and rows the model draws random numbers of shape {found} that all "
                "parts must share, and each part would draw its own; draw them before, or use another strategy"
            )
        if not inside and expected != found:
            raise UserError(
                f"tensor: outside of layers in columns and rows the model draws random numbers of shape {found}, not "
                f"{expected}, for a part of what it computes, and all parts would draw the same; name other layers, or "
                "use another strategy"
            )
    both = part.starts & part.follows
    if both and any(part.inside):
        raise UserError(
            f"tensor: '{min(both)}' follows layers in columns at one time and not at another, and random numbers are "
            "drawn behind it; name other layers, or use another strategy"
        )


@dataclass(frozen=True)
class Expected:
    """What went into every layer in rows of the whole model, and came out of it, call by call; and the result."""

    calls: tuple[tuple[str, Tensor, Tensor], ...]
    outputs: Tensor


def expected_of(workload: Workload, model: nn.Module, data: Data, cuts: Mapping[str, Cut]) -> Expected:
    """Of a whole model on the host, as it is evaluated: batch norm and dropout do not disturb."""
    calls: list[tuple[str, Tensor, Tensor]] = []
    with ExitStack() as hooks, _evaluated(model):
        for name, cut in cuts.items():
            if cut.role == "rows":
                note = _noted(calls, name)
                hooks.callback(model.get_submodule(name).register_forward_hook(note).remove)
        outputs = one_tensor(workload.name, model(example_of(data, WEIGHED, "cpu")))
    return Expected(tuple(calls), outputs)


def _noted(calls: list[tuple[str, Tensor, Tensor]], name: str) -> Callable[..., None]:
    return lambda _, inputs, outputs: calls.append((name, inputs[0].clone(), outputs.clone()))


def refuse_another_model(model: nn.Module, data: Data, cuts: Mapping[str, Cut], part: int, expected: Expected) -> None:
    """This part of it, on the host: into every layer in rows must go a part of what went into the whole one. What such
    layers put out is then told, in place of the sum over all parts, which none but all of them know."""
    calls = iter(expected.calls)

    def compared(name: str, cut: Cut) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> Tensor:
            known, taken, given = next(calls, ("", torch.empty(0), torch.empty(0)))
            if known != name:
                raise UserError(f"tensor: with these layers cut the model calls '{name}' in another order; {RULE}")
            dimension = -1 if isinstance(module, nn.Linear) else 1
            own = taken.split(cut.sizes, dimension)[part]
            if told := largest_difference(inputs[0], own):
                raise UserError(
                    f"tensor: with these layers cut the model is another: what goes into '{name}' is not a part of "
                    f"what goes into it in the whole model ({told}); {RULE}"
                )
            return given.clone()

        return hook

    with ExitStack() as hooks, _evaluated(model):
        for name, cut in cuts.items():
            if cut.role == "rows":
                hooks.callback(model.get_submodule(name).register_forward_hook(compared(name, cut)).remove)
        outputs = model(example_of(data, WEIGHED, "cpu"))
    if told := largest_difference(outputs, expected.outputs):
        raise UserError(f"tensor: with these layers cut the model puts out something else ({told}); {RULE}")


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """And then as it was."""
    trained = [module for module in model.modules() if module.training]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), unchanged_buffers([model]):
        model.eval()
        try:
            yield
        finally:
            for module in trained:
                module.training = True
