"""What a workload weighs, for plans."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

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
    ready: list[Tensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(ready.append)
    inputs, targets = data.example()
    kept: set[int] = set()
    with saved_tensors_hooks(lambda tensor: _note(tensor, kept), lambda tensor: tensor):
        outputs = model(inputs.unsqueeze(0).to(device))
    outputs.float().sum().backward()
    return Footprint(
        parameter_bytes=tuple(parameter.nbytes for parameter in ready),
        parameter_shapes=tuple(tuple(parameter.shape) for parameter in ready),
        input_bytes=inputs.nbytes,
        target_bytes=targets.nbytes,
        output_bytes=outputs.nbytes,
        read_again=tuple(_storage(parameter) in kept for parameter in ready),
    )


def _note(tensor: Tensor, kept: set[int]) -> Tensor:
    """What autograd keeps for backward, by the memory it is in: a transposed weight is that weight."""
    if tensor.layout == torch.strided:
        kept.add(_storage(tensor))
    return tensor


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
