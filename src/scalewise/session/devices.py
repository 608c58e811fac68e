"""Which devices this machine really has for a placement."""

from __future__ import annotations

from dataclasses import replace

import torch

from scalewise.errors import UserError
from scalewise.session.placement import Placement


def settle(placement: Placement) -> Placement:
    """The placement with 'auto' decided, or a clear refusal where the GPUs asked for are not there."""
    gpus = torch.cuda.device_count()
    kind, devices = placement.device_kind, placement.devices
    if kind == "auto":
        only_cpu = placement.hosts > 1 or placement.slow
        return replace(placement, device_kind="cuda" if gpus >= devices and not only_cpu else "cpu")
    if kind == "cuda" and gpus < devices:
        raise UserError(
            f"{devices} CUDA devices were asked for and this machine has {gpus}; use --device-kind cpu, or slice on one GPU"
        )
    if kind == "slice" and gpus == 0:
        raise UserError("slices need a CUDA device and this machine has none; use --device-kind cpu")
    return placement
