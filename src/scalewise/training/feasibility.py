"""Refuse runs that cannot succeed before anything is allocated or computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scalewise.core.errors import RunFailed, UserError
from scalewise.core.training_options import Settings, steps_per_epoch
from scalewise.data.dataset import Data
from scalewise.launch.placement import Placement
from scalewise.models.workload import Workload
from scalewise.predict.memory import OPTIMIZER_COPIES
from scalewise.strategies.base import Strategy, batch_shares
from scalewise.strategies.plan import share_sizes
from scalewise.strategies.registry import STRATEGIES
from scalewise.training.results import Request

_TOO_FEW = "Expected more than 1 value per channel"
"""Start of the error of torch's batch norm for a single sample."""


def check_memory(request: Request, placement: Placement) -> None:
    """Raise RunFailed if weights, gradients and optimizer state alone exceed the memory of this machine or device.

    The model is built on the meta device, so that nothing is allocated. A model that cannot be built there is not
    checked.
    """
    workload = request.resolved()
    model = meta_model(workload)
    if model is None:
        return
    sizes = [parameter.numel() * parameter.element_size() for parameter in model.parameters()]
    trained = sum(size for size, parameter in zip(sizes, model.parameters(), strict=True) if parameter.requires_grad)
    on_cpu = placement.device_kind == "cpu"
    if on_cpu:
        limit = psutil.virtual_memory().total
        copies = 1 if request.strategy.for_large_models or request.strategy.one_model else placement.devices
    elif request.strategy.for_large_models or request.strategy.one_model or not torch.cuda.is_available():
        return
    else:
        limit, copies = int(torch.cuda.get_device_properties(0).total_memory), 1
    optimizer = request.settings.optimizer or workload.optimizer
    if problem := memory_problem(sum(sizes), trained, optimizer, copies, limit, on_cpu):
        raise RunFailed(problem)


def memory_problem(
    weight_bytes: int, trained_bytes: int, optimizer: str, copies: int, limit_bytes: int, on_cpu: bool
) -> str | None:
    """Explain why a model cannot be trained in this memory; None if its state fits.

    `copies`: copies of weights and gradients that share the memory; the optimizer state is counted once.
    """
    state_bytes = OPTIMIZER_COPIES.get(optimizer, 0) * trained_bytes
    stateless = copies * (weight_bytes + trained_bytes)
    if stateless + state_bytes <= limit_bytes:
        return None
    parts = f"weights, gradients and {optimizer.capitalize()} state" if state_bytes else "weights and gradients"
    per_copy = f" of {copies} devices" if copies > 1 else ""
    need = f"{parts}{per_copy} need {_GB(stateless + state_bytes)} of {_GB(limit_bytes)}"
    remedies = []
    if state_bytes and stateless <= limit_bytes:
        remedies.append(f"--optimizer sgd needs {_GB(stateless)}")
    if on_cpu and copies > 1 and stateless // copies + state_bytes <= limit_bytes:
        remedies.append("fewer devices need less memory")
    if not on_cpu:
        names = [name for name, strategy in STRATEGIES.items() if strategy.for_large_models]
        remedies.append(f"--strategy {', '.join(names[:-1])} or {names[-1]} divides them among devices")
    return "; ".join([need, *(remedies or ["`scalewise advise` finds a cluster where the model fits"])])


def _GB(count: int) -> str:
    size = count / 1e9
    return f"{size:,.0f} GB" if size >= 100 else f"{size:.3g} GB"


def check_batch_norm(workload: Workload, data: Data, settings: Settings, strategy: Strategy, devices: int) -> None:
    """Raise UserError if batch norm would get a single sample on a device in some step, with which it cannot train."""
    batch = next(_single_sample_batches(len(data), settings, strategy, devices), None)
    if batch is None:
        return
    model = meta_model(workload)
    if model is None or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    if not _fails_with_one_sample(model, data):
        return
    parts = f" in {settings.accumulate} parts" if settings.accumulate > 1 else ""
    which = "a batch" if batch == settings.batch else "the last batch of an epoch"
    raise UserError(
        f"batch norm needs at least two samples, but {which} has {batch:,}, which leaves one to a device ({devices} "
        f"device{'s' if devices > 1 else ''}{parts}); choose another --batch or --samples"
    )


def _single_sample_batches(samples: int, settings: Settings, strategy: Strategy, devices: int) -> Iterator[int]:
    """Yield the sizes of batches of which a device computes one sample at a time.

    A device without samples computes one with weight zero.
    """
    if strategy.splits_batch:
        return
    per_epoch = steps_per_epoch(samples, settings.batch)
    last = samples - (per_epoch - 1) * settings.batch
    reaches_last = settings.total_steps(samples) >= per_epoch
    for batch in {settings.batch, *([last] if reaches_last else [])} if per_epoch > 1 else {last}:
        for share in set(share_sizes(batch, batch_shares(strategy, devices))):
            if share <= 1 or 1 in share_sizes(share, settings.accumulate):
                yield batch
                break


def _fails_with_one_sample(model: nn.Module, data: Data) -> bool:
    inputs = data.example()[0].unsqueeze(0).to("meta")
    try:
        with torch.no_grad():
            model.train()(inputs)
    except ValueError as error:
        return str(error).startswith(_TOO_FEW)
    except Exception:  # the model does not run on the meta device
        return False
    return False


def meta_model(workload: Workload) -> nn.Module | None:
    """Build the model without memory; None if it needs real numbers."""
    build: Callable[[], Any] = workload.model
    try:
        with torch.device("meta"):
            model = build()
    except Exception:  # the model cannot be built on the meta device; the check is skipped
        return None
    return model if isinstance(model, nn.Module) else None
