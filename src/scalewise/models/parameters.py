"""Find parameters that get no gradient or are used outside their own layer; flatten parameters into one tensor."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data
from scalewise.models.chain import WEIGHED, example_of
from scalewise.models.workload import Workload, one_tensor


def allow_one_sample(model: nn.Module) -> None:
    """Put batch norm into evaluation mode, because it refuses to train on one value per channel."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def unreached_by(workload: Workload, data: Data) -> frozenset[str]:
    """Return the names of trainable parameters that get no gradient from one sample.

    A new model is run, on the meta device if it can run there, else on the CPU. The random state is restored.
    """
    with torch.random.fork_rng(devices=[]), seeded_python_random():
        try:
            return _unreached_on("meta", workload, data)
        except Exception:  # the model may need real numbers; if it fails on the CPU too, that error is raised
            return _unreached_on("cpu", workload, data)


@contextmanager
def seeded_python_random() -> Iterator[None]:
    """Seed the generators of Python and numpy, so that models that skip layers at random do so alike on every rank.

    Training does not seed these generators; their state is restored afterwards.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def _unreached_on(device: str, workload: Workload, data: Data) -> frozenset[str]:
    with torch.device(device):
        model = workload.model()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            f"the model of {workload.name} has no trainable parameter; set requires_grad=True on its parameters"
        )
    allow_one_sample(model)
    inputs, _ = data.example()
    outputs = one_tensor(workload.name, model(inputs.unsqueeze(0).to(device)))
    outputs.float().sum().backward()
    return frozenset(
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
    )


def parameter_used_outside_its_layer(workload: Workload, data: Data, layer_of: Mapping[str, str]) -> str | None:
    """Return the first parameter that the model uses outside a call of its layer in `layer_of`, or None.

    A new model is run on the meta device, or on the CPU if that fails. If both fail, training will report the error.
    """
    for device in ("meta", "cpu"):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                with torch.device(device):
                    model = workload.model()
                recorder = _ParameterUseRecorder(model, layer_of)
                with recorder:
                    model(example_of(data, WEIGHED, device))
            except Exception:  # the model may need real numbers
                continue
            return recorder.first
    return None


class _ParameterUseRecorder(TorchDispatchMode):
    """Record the first parameter that is used while its layer is not being called."""

    def __init__(self, model: nn.Module, layer_of: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first: str | None = None
        self.called: list[str] = []
        self.held = {
            parameter.untyped_storage()._cdata: (name, layer_of[name])
            for name, parameter in model.named_parameters()
            if layer_of.get(name)
        }
        for layer in {layer for _, layer in self.held.values()}:
            module = model.get_submodule(layer)
            module.register_forward_pre_hook(lambda *_, layer=layer: self.called.append(layer))
            module.register_forward_hook(lambda *_: self.called.pop() and None, always_call=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if self.first is None and isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                name, layer = self.held.get(tensor.untyped_storage()._cdata, ("", ""))
                if name and layer not in self.called:
                    self.first = name
        return func(*args, **(kwargs or {}))


_EXCLUDED = "_scalewise_excluded"


def make_model(workload: Workload, data: Data) -> nn.Module:
    """Create a model and exclude the parameters that get no gradient from being sent and updated.

    If an excluded parameter gets a gradient later, the step fails, because its update would be lost.
    """
    names = unreached_by(workload, data)
    model = workload.model()
    for name, parameter in model.named_parameters():
        if name in names:
            setattr(parameter, _EXCLUDED, True)
            parameter.register_post_accumulate_grad_hook(partial(_refuse, name))
    return model


def is_left_out(parameter: Tensor) -> bool:
    return getattr(parameter, _EXCLUDED, False)


def refuse_unreached(model: nn.Module, unreached: Iterable[Tensor]) -> None:
    """Raise a UserError if there are parameters that got no gradient in this step but get one in others."""
    missing = {id(parameter) for parameter in unreached}
    for name, parameter in model.named_parameters():
        if id(parameter) in missing:
            raise _inconsistent_gradient(name)


def _refuse(name: str, _: Tensor) -> None:
    raise _inconsistent_gradient(name)


def _inconsistent_gradient(name: str) -> UserError:
    return UserError(
        f"'{name}' gets a gradient from some samples only, but this strategy exchanges the same parameters in every "
        "step; use --strategy single"
    )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training updates."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad and not is_left_out(parameter)]


def one_kind(parameters: list[nn.Parameter]) -> torch.dtype:
    """Return the dtype of the parameters; raise UserError if they have several."""
    dtypes = {parameter.dtype for parameter in parameters}
    if not dtypes:
        raise UserError("the model has nothing to train: none of its parameters requires a gradient and gets one")
    if len(dtypes) != 1:
        raise UserError(f"this strategy needs parameters of one dtype; the model mixes {sorted(map(str, dtypes))}")
    return dtypes.pop()


def flatten_parameters(model: nn.Module) -> Tensor:
    """Move the trainable parameters into one flat tensor and make them views of it."""
    parameters = trainable(model)
    one_kind(parameters)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
        parameter.data = view
    return flat


def views_of(flat: Tensor, like: list[nn.Parameter]) -> list[Tensor]:
    """Return the parts of `flat`, each with the shape of its parameter."""
    parts = flat.split([parameter.numel() for parameter in like])
    return [part.view(parameter.shape) for part, parameter in zip(parts, like, strict=True)]
