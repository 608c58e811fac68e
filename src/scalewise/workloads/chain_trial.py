"""A chain of stages that the user says is the model, tried on a few samples before it trains: is it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.workloads.called_in_turn import followed
from scalewise.workloads.chain import WEIGHED, Part, chain_of, example_of
from scalewise.workloads.outputs import one_tensor
from scalewise.workloads.reached import dice_alike
from scalewise.workloads.same_numbers import largest_difference
from scalewise.workloads.unchanged import unchanged_buffers
from scalewise.workloads.workload import Workload

SEED = 0
RULE = "each must take just what the one before gives, and all that the model computes must be in one of them"

UNTOUCHED = torch.Generator().manual_seed(SEED).get_state()


def refuse_another_model(workload: Workload, data: Data, model: nn.Module, parts: Sequence[Part]) -> None:
    """A model that is seen to call its stages in turn is not tried: best where that needs no numbers.

    Else both are on the host. As evaluated first, where batch norm looks at no other samples. As trained both draw the
    same random numbers; if not in the same order, they are not compared. Where one draws more than the other, the
    stages leave out a dropout, say."""
    if _is_seen_without_numbers(workload, data):
        return
    inputs = example_of(data, WEIGHED, "cpu")
    said = f"the stages of '{workload.name}' ({', '.join(part.name for part in parts)})"
    for training in (False, True):
        (expected, in_turn), state = _tried(partial(followed, model, parts), model, inputs, training)
        one_tensor(workload.name, expected)
        if in_turn:
            continue
        try:
            found, other = _tried(lambda value: _through(parts, value), model, inputs, training)
        except Exception as error:  # whatever a stage says to what another gives
            message = " ".join(str(error).split())
            raise UserError(
                f"{said} fail where the model does not: {type(error).__name__}: {message}; {RULE}"
            ) from error
        told = largest_difference(found, expected)
        drawn_otherwise = training and torch.equal(state, other) and not torch.equal(state, UNTOUCHED)
        if told and not drawn_otherwise:
            when = "while it trains " if training else ""
            raise UserError(f"{said} {when}do not compute what the model does ({told}); {RULE}")


def _is_seen_without_numbers(workload: Workload, data: Data) -> bool:
    with torch.random.fork_rng(devices=[]), torch.no_grad(), dice_alike():
        try:
            with torch.device("meta"):
                model = workload.model()
            parts, inputs = chain_of(workload, model), example_of(data, WEIGHED, "meta")
            return all(followed(model.train(training), parts, inputs)[1] for training in (False, True))
        except Exception:  # whatever a model does with real numbers only; it is then tried with them
            return False


def _tried(call: Callable[[Tensor], Any], model: nn.Module, inputs: Tensor, training: bool) -> tuple[Any, Tensor]:
    """What comes out, and where the generator is then."""
    modes = {module: module.training for module in model.modules()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), dice_alike(), unchanged_buffers([model]):
        torch.default_generator.manual_seed(SEED)
        model.train(training)
        try:
            outputs = call(inputs.clone())
            return outputs, torch.get_rng_state()
        finally:
            for module, mode in modes.items():
                module.training = mode


def _through(parts: Sequence[Part], value: Any) -> Any:
    for part in parts:
        value = part.module(value)
    return value
