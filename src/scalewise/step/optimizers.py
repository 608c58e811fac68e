"""Optimizers by name, fused: one kernel over all parameters instead of one per tensor and operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.errors import UserError
from scalewise.spec import unknown

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, **options: torch.optim.SGD(parameters, momentum=0.9, **options),
    "adagrad": torch.optim.Adagrad,
    "adafactor": lambda parameters, fused, **options: torch.optim.Adafactor(parameters, **options),  # noqa: ARG005
}
CAPTURABLE = {"adam", "adamw"}
NOT_FUSED_ON_GPU = {"adagrad"}
"""By torch 2.11 and before: there they go tensor by tensor in groups, torch's own choice."""
ELEMENTWISE = {"adam", "adamw", "sgd", "momentum", "adagrad"}
"""Those that treat every element alike, wherever a tensor is cut."""


def check_optimizer(name: str) -> None:
    """Raise a UserError for what is no optimizer."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], learning_rate: float, *, captured: bool = False
) -> torch.optim.Optimizer:
    """`captured`: keep the step count on the device, so that a CUDA graph can hold the update."""
    check_optimizer(name)
    chosen = list(parameters)
    on_gpu = any(parameter.is_cuda for parameter in chosen)
    options: dict[str, Any] = {"lr": learning_rate, "fused": None if on_gpu and name in NOT_FUSED_ON_GPU else True}
    if captured and name in CAPTURABLE:
        options["capturable"] = True
    return OPTIMIZERS[name](chosen, **options)


def refuse_unless_elementwise(name: str, who: str) -> None:
    """For strategies that update parts of tensors."""
    if name in OPTIMIZERS and name not in ELEMENTWISE:
        raise UserError(
            f"{who} cut large tensors, and {name} looks at whole ones; valid: {', '.join(sorted(ELEMENTWISE))}"
        )


def state_after_a_step(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype
) -> dict[str, Tensor]:
    """What kinds of state an element-wise optimizer keeps, on two elements: a step count has no dimension."""
    tried = nn.Parameter(torch.zeros(2, dtype=dtype))
    tried.grad = torch.zeros_like(tried)
    optimizer = make([tried])
    optimizer.step()
    return {key: value for key, value in optimizer.state[tried].items() if isinstance(value, Tensor)}


def placed_state(key: str, value: Any, parameter: Tensor, optimizer: torch.optim.Optimizer) -> Any:
    """State read from elsewhere, where this optimizer wants it: the fused and capturable keep their step count on the
    parameter's device."""
    on_host = key == "step" and not (optimizer.defaults.get("fused") or optimizer.defaults.get("capturable"))
    return value if on_host or not isinstance(value, Tensor) else value.to(parameter.device)
