"""What a workload weighs, for plans."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.plan import Footprint, Section, Still
from scalewise.strategies.units import units_of
from scalewise.workloads.chain import WEIGHED, chain_of, example_of, weigh
from scalewise.workloads.lone_sample import allow_lone_sample
from scalewise.workloads.matrices import Watch
from scalewise.workloads.outputs import one_tensor
from scalewise.workloads.workload import Workload


def footprint_of(workload: Workload, data: Data) -> Footprint:
    """Found by one sample through a fresh model, on the meta device where the model can run without numbers."""
    try:
        return _footprint_on("meta", workload, data)
    except Exception:  # whatever a model does with real numbers only; if it fails on the CPU too, that is its error
        with torch.random.fork_rng(devices=[]):
            return _footprint_on("cpu", workload, data)


def norms_batches(model: nn.Module) -> bool:
    """Whether a layer computes with the mean of the samples that it sees."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _footprint_on(device: str, workload: Workload, data: Data) -> Footprint:
    with torch.device(device):
        model = workload.model()
    allow_lone_sample(model)
    ready: list[Tensor] = []
    hooks = [
        parameter.register_post_accumulate_grad_hook(ready.append)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    called: set[str] = set()
    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, path=path: called.add(path))
    inputs, targets = data.example()
    kept: set[int] = set()
    with Watch(model) as watch, saved_tensors_hooks(lambda tensor: _note(tensor, kept), lambda tensor: tensor):
        outputs = model(inputs.unsqueeze(0).to(device))
    one_tensor(workload.name, outputs).float().sum().backward()
    for hook in hooks:
        hook.remove()  # torch does not tell Python's garbage collector of them, and with them the model would stay
    return Footprint(
        parameter_bytes=tuple(parameter.nbytes for parameter in ready),
        parameter_shapes=tuple(tuple(parameter.shape) for parameter in ready),
        input_bytes=inputs.nbytes,
        target_bytes=targets.nbytes,
        output_bytes=outputs.nbytes,
        read_again=tuple(_storage(parameter) in kept for parameter in ready),
        parameter_names=tuple(names[parameter] for parameter in ready),
        matrices=tuple(watch.matrices),
        norms_batches=norms_batches(model),
        sections=_sections(workload, model, data, device),
        still=tuple(_still(model, [names[parameter] for parameter in reversed(ready)], called)),
    )


def _still(model: nn.Module, trained: list[str], called: set[str]) -> Iterator[Still]:
    """Those between two trained ones of the model come before the second."""
    parameters = dict(model.named_parameters())
    unit_of = {
        name: unit for unit, at in units_of(list(parameters)).items() for name in (list(parameters)[i] for i in at)
    }
    found: list[Still] = []
    following = len(trained)
    for name, parameter in reversed(parameters.items()):
        if name in trained:
            following = trained.index(name)
        elif unit_of[name] in called or not unit_of[name]:
            found.append(Still(name, parameter.nbytes, tuple(parameter.shape), following))
    found.reverse()
    yield from sorted(found, key=lambda each: each.after)


def _sections(workload: Workload, model: nn.Module, data: Data, device: str) -> tuple[Section, ...]:
    try:
        return weigh(chain_of(workload, model), example_of(data, WEIGHED, device))[0]
    except UserError:  # told to those who want to cut it
        return ()


def _note(tensor: Tensor, kept: set[int]) -> Tensor:
    """What autograd keeps for backward, by the memory it is in: a transposed weight is that weight."""
    if tensor.layout == torch.strided:
        kept.add(_storage(tensor))
    return tensor


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
