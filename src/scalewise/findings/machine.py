"""What cells were measured on, and when, in words short enough for a figure."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.results.environment import Environment


def machine_text(environment: Environment, device_kind: str) -> str:
    """'2 cores of AMD EPYC', '4x GTX 1080 Ti', 'slices of NVIDIA H200'."""
    hardware = environment.hardware
    gpus = [gpu["name"] if isinstance(gpu, dict) else str(gpu) for gpu in hardware.get("gpus") or []]
    if device_kind == "cpu" or not gpus:
        return f"{hardware.get('cores', '?')} cores of {hardware.get('cpu', 'an unnamed CPU')}"
    if device_kind == "slice":
        return f"slices of {gpus[0]}"
    return f"{len(gpus)}x {gpus[0]}" if len(gpus) > 1 else gpus[0]


def place_text(environment: Environment, device_kind: str) -> str:
    """The machine, and that the data is made up where it is: 'on 2 cores of AMD EPYC with synthetic speech'."""
    made_up = f" with {environment.data}" if environment.data.startswith("synthetic") else ""
    return f"{machine_text(environment, device_kind)}{made_up}"


def when_text(started: Sequence[str]) -> str:
    """The day, or the first and the last."""
    days = sorted({moment[:10] for moment in started})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
