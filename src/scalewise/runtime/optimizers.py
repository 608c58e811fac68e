"""Create fused optimizers by name, set the precision of matrix multiplications, sum losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import Precision, check_optimizer

HALF: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions of autocast."""


def set_precision(precision: Precision, device: torch.device) -> None:
    """Enable tf32 only for precision 'tf32'; by default torch lets cuDNN use it."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError("--precision tf32 needs a CUDA device; valid on the CPU: fp32, bf16, fp16")
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which forward and loss run."""
    if precision in HALF:
        return torch.autocast(device.type, dtype=HALF[precision])
    return nullcontext()


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Return the dynamic loss scaling of fp16, whose small gradients would become zero; None for other precisions."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


def sum_losses(losses: Tensor, device: torch.device) -> Tensor:
    """Sum the weighted losses of all ranks, once per epoch; NCCL needs them on the device."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return losses.cpu()
    losses = losses.to(device if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(losses)
    return losses.cpu()


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, **options: torch.optim.SGD(parameters, momentum=0.9, **options),
    "adagrad": torch.optim.Adagrad,
    "adafactor": lambda parameters, fused, **options: torch.optim.Adafactor(parameters, **options),  # noqa: ARG005
}
CAPTURABLE = {"adam", "adamw"}
NOT_FUSED_ON_GPU = {"adagrad"}
"""Optimizers without a fused GPU version in torch 2.11 and earlier; torch's default implementation is used."""
ELEMENTWISE = {"adam", "adamw", "sgd", "momentum", "adagrad"}
"""Optimizers that update each element independently, so that a tensor can be split anywhere."""


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], learning_rate: float, *, captured: bool = False
) -> torch.optim.Optimizer:
    """Create an optimizer; `captured` keeps the step count on the device, as a CUDA graph requires."""
    check_optimizer(name)
    parameter_list = list(parameters)
    on_gpu = any(parameter.is_cuda for parameter in parameter_list)
    options: dict[str, Any] = {"lr": learning_rate, "fused": None if on_gpu and name in NOT_FUSED_ON_GPU else True}
    if captured and name in CAPTURABLE:
        options["capturable"] = True
    return _OPTIMIZERS[name](parameter_list, **options)


def refuse_unless_elementwise(name: str, who: str) -> None:
    """Raise a UserError if the optimizer cannot update parts of tensors; `who` splits them."""
    if name in _OPTIMIZERS and name not in ELEMENTWISE:
        raise UserError(
            f"{who} split large tensors, but {name} needs whole tensors; valid: {', '.join(sorted(ELEMENTWISE))}"
        )


def state_after_a_step(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the state of an element-wise optimizer after a step on two elements; a step count has no dimension."""
    example = nn.Parameter(torch.zeros(2, dtype=dtype))
    example.grad = torch.zeros_like(example)
    optimizer = make([example])
    optimizer.step()
    return {key: value for key, value in optimizer.state[example].items() if isinstance(value, Tensor)}


def placed_state(key: str, value: Any, parameter: Tensor, optimizer: torch.optim.Optimizer) -> Any:
    """Move loaded optimizer state to the device where the optimizer keeps it.

    Fused and capturable optimizers keep the step count on the device of the parameter, others on the host.
    """
    on_host = key == "step" and not (optimizer.defaults.get("fused") or optimizer.defaults.get("capturable"))
    if on_host or not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    # Fused optimizers need states with the memory format of their parameter.
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
