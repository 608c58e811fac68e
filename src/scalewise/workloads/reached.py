"""Which parameters a step gives gradients to: a model may hold layers that it never calls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.workloads.lone_sample import allow_lone_sample
from scalewise.workloads.outputs import one_tensor
from scalewise.workloads.workload import Workload


def unreached_by(workload: Workload, data: Data) -> frozenset[str]:
    """Names of the trainable parameters that one sample gives no gradient, tried on a fresh model: on the meta device
    where it can run without numbers. Random numbers that are drawn for it are put back."""
    with torch.random.fork_rng(devices=[]), dice_alike():
        try:
            return _unreached_on("meta", workload, data)
        except Exception:  # whatever a model does with real numbers only; if it fails on the CPU too, that is its error
            return _unreached_on("cpu", workload, data)


@contextmanager
def dice_alike() -> Iterator[None]:
    """Python's and numpy's random numbers, which nobody seeds for a run: a model that skips layers by them is found to
    skip the same ones on every rank."""
    state, state_of_numpy = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(state_of_numpy)


def _unreached_on(device: str, workload: Workload, data: Data) -> frozenset[str]:
    with torch.device(device):
        model = workload.model()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"the model of {workload.name} has no parameter that requires a gradient: nothing to train")
    allow_lone_sample(model)
    inputs, _ = data.example()
    outputs = one_tensor(workload.name, model(inputs.unsqueeze(0).to(device)))
    outputs.float().sum().backward()
    return frozenset(
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
    )
