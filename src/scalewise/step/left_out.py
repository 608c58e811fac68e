"""Parameters that no step reaches, a layer that is never called: one device does not touch them, so nobody does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.workloads.reached import unreached_by
from scalewise.workloads.workload import Workload

_MARK = "_scalewise_left_out"


def make_model(workload: Workload, data: Data) -> nn.Module:
    """For strategies that exchange parameters: those that no step reaches are marked, and then neither sent nor
    updated. One that is reached after all would be forgotten silently: the step that reaches it fails."""
    names = unreached_by(workload, data)
    model = workload.model()
    for name, parameter in model.named_parameters():
        if name in names:
            setattr(parameter, _MARK, True)
            parameter.register_post_accumulate_grad_hook(partial(_refuse, name))
    return model


def is_left_out(parameter: Tensor) -> bool:
    return getattr(parameter, _MARK, False)


def refuse_unreached(model: nn.Module, unreached: Iterable[Tensor]) -> None:
    """One device would leave these as they are in this step, and not in others."""
    missing = {id(parameter) for parameter in unreached}
    for name, parameter in model.named_parameters():
        if id(parameter) in missing:
            raise _now_and_then(name)


def _refuse(name: str, _: Tensor) -> None:
    raise _now_and_then(name)


def _now_and_then(name: str) -> UserError:
    return UserError(
        f"'{name}' gets a gradient from some samples and not from others, and this strategy exchanges the same "
        "parameters at every step; use --strategy single"
    )
