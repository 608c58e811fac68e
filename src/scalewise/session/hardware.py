"""What this machine is called and has, in words."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


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
    """'NVIDIA H200', or one core of a named CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"one core of {cpu_name()}"
