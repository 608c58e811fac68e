"""How long a device takes for every part of a chain, one by one: a model that does not fit it can be timed as well."""

from __future__ import annotations

import warnings
from copy import deepcopy
from time import perf_counter

import torch
from torch import Tensor, nn

from scalewise.workloads.chain import Border
from scalewise.workloads.cuttable import Cuttable

REPEATS = 3


def section_seconds(cuttable: Cuttable, inputs: Tensor, device: torch.device) -> list[float]:
    """Forward and backward, the quickest of a few; copies of the parts are used, so that nothing is learnt."""
    found: list[float] = []
    given: tuple[Tensor, ...] = (inputs.to(device),)
    before: Border | None = None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for part, border in zip(cuttable.parts, cuttable.borders, strict=True):
            module = _copied(part.module).to(device)
            runs = [_timed(module, before, given, device) for _ in range(REPEATS)]
            module.to("meta")  # an exported one goes when garbage is collected only; its weights must not wait for that
            found.append(min(seconds for seconds, _ in runs))
            given, before = runs[-1][1], border
    return found


def _copied(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of itself, as it copies an exported module
        return deepcopy(module)


def _timed(
    module: nn.Module, before: Border | None, given: tuple[Tensor, ...], device: torch.device
) -> tuple[float, tuple[Tensor, ...]]:
    learns = [each.learns for each in before.tensors] if before else [False]
    tensors = [each.detach().requires_grad_(learn) for each, learn in zip(given, learns, strict=True)]
    _wait_for(device)
    started = perf_counter()
    value = module(before.unpack(tensors) if before else tensors[0])
    outputs = (value,) if isinstance(value, Tensor) else tuple(value)
    if learning := [each for each in outputs if each.requires_grad]:
        torch.autograd.backward(learning, [torch.ones_like(each) for each in learning])
    _wait_for(device)
    return perf_counter() - started, tuple(each.detach() for each in outputs)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
