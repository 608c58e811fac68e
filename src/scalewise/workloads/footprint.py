"""What a workload weighs, for plans."""

from __future__ import annotations

import torch

from scalewise.data.data import Data
from scalewise.plan import Footprint
from scalewise.workloads.workload import Workload


def footprint_of(workload: Workload, data: Data) -> Footprint:
    """Found by one sample through a fresh model, on the meta device where the model can run without numbers."""
    try:
        return _footprint_on("meta", workload, data)
    except Exception:  # whatever a model does with real numbers only; if it fails on the CPU too, that is its error
        with torch.random.fork_rng(devices=[]):
            return _footprint_on("cpu", workload, data)


def _footprint_on(device: str, workload: Workload, data: Data) -> Footprint:
    with torch.device(device):
        model = workload.model()
    ready: list[int] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda which: ready.append(which.nbytes))
    inputs, targets = data.example()
    outputs = model(inputs.unsqueeze(0).to(device))
    outputs.float().sum().backward()
    return Footprint(
        parameter_bytes=tuple(ready),
        input_bytes=inputs.nbytes,
        target_bytes=targets.nbytes,
        output_bytes=outputs.nbytes,
    )
