"""Which devices this machine really has for a placement."""

from __future__ import annotations

from dataclasses import replace

import torch

from scalewise.errors import UserError
from scalewise.session.placement import Placement
from scalewise.step.room import memory_limit_bytes

# Every rank receives the pipes of all ranks, and a forkserver passes on at most 256 descriptors.
MOST_DEVICES = 64


def settle(placement: Placement) -> Placement:
    """The placement with 'auto' decided, or a clear refusal of what one machine, or this one, cannot do."""
    gpus = torch.cuda.device_count()
    kind, devices = placement.device_kind, placement.devices
    if devices > MOST_DEVICES:
        raise UserError(f"{devices} devices are too many for one machine; valid: 1 to {MOST_DEVICES}, or use torchrun")
    if placement.hosts > 1 and placement.link is None:
        raise UserError(
            f"{placement.hosts} rehearsed hosts need the speed of their links; add for example --link 1gbit"
        )
    if kind == "auto":
        only_cpu = placement.hosts > 1 or placement.slow
        return replace(placement, device_kind="cuda" if gpus >= devices and not only_cpu else "cpu")
    if kind == "cuda" and gpus < devices:
        raise UserError(
            f"{devices} CUDA device{'s were' if devices > 1 else ' was'} asked for and this machine has {gpus}; use "
            "--device-kind cpu or slice"
        )
    if kind == "slice" and gpus == 0:
        raise UserError("slices need a CUDA device and this machine has none; use --device-kind cpu")
    return placement


def limit_memory(device: torch.device) -> None:
    """Let this process take no more of a CUDA device than the environment says, if it says so."""
    limit_bytes = memory_limit_bytes()
    if limit_bytes is not None:
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / whole), device)
