"""What this machine is called and has, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from scalewise.session.slices import SHARE


def cpu_name() -> str:
    """The processor's marketing name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """'NVIDIA H200', '25 % of NVIDIA H200' where this process is a slice of it, or one core of a named CPU."""
    if device.type == "cuda":
        share = os.environ.get(SHARE, "100")
        return ("" if share == "100" else f"{share} % of ") + torch.cuda.get_device_name(device)
    return f"one core of {cpu_name()}"
