"""Which parameters a model uses while the layer that holds them is not being called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalewise.data.data import Data
from scalewise.workloads.chain import WEIGHED, example_of
from scalewise.workloads.workload import Workload


def used_outside(workload: Workload, data: Data, layer_of: Mapping[str, str]) -> str | None:
    """The first that is, of those whose layer `layer_of` names. Found without numbers if the model can run without; if
    it fails on the CPU too, that is its own error, to come."""
    for device in ("meta", "cpu"):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                with torch.device(device):
                    model = workload.model()
                uses = _Uses(model, layer_of)
                with uses:
                    model(example_of(data, WEIGHED, device))
            except Exception:  # whatever a model does with real numbers only
                continue
            return uses.first
    return None


class _Uses(TorchDispatchMode):
    """Follows which layers are being called, and what is computed with."""

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
