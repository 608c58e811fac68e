"""What operations take beside their tensors, on each kind of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from scalewise.strategies.cuts import Cut
from scalewise.workloads.convolution_memory import Copied, copied_by_convolution
from scalewise.workloads.gpu_memory import CudnnWorkspaces, Rooms, kept_by_product
from scalewise.workloads.recurrent_memory import BACKWARD, FORWARD, copied_by_recurrent, with_workspace


class Libraries(NamedTuple):
    """What operations take beside their tensors."""

    copied: Callable[[Any, Any, Any, str], Copied] = lambda *_: Copied()
    """(function, arguments, result, layer): while it runs."""
    kept: Callable[[Any], int] = lambda _: 0
    """(function): from its first call on."""
    whole: Callable[[Any, Any, Any], Any] = lambda _function, _arguments, result: result
    """(function, arguments, result): with what it keeps for backward beside its tensors."""


def libraries_on(device: torch.device, cuts: Mapping[str, Cut], least: bool, rooms: Rooms) -> Libraries:
    if device.type == "cpu":
        return Libraries(_copied_on_cpu, whole=with_workspace)
    if not torch.cuda.is_available():  # planned elsewhere, for a GPU that cannot be asked
        return Libraries()
    kept = partial(kept_by_product, device=device)
    if least:
        return Libraries(kept=kept)
    workspaces = CudnnWorkspaces(device, cuts, rooms)
    return Libraries(lambda function, args, _, layer: workspaces.copied_by(function, args, layer), kept)


def _copied_on_cpu(function: Any, args: Any, result: Any, _: str) -> Copied:
    if function in (FORWARD, BACKWARD):
        return copied_by_recurrent(function, args, result)
    return copied_by_convolution(function, args, result)
