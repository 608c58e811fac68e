"""What the U-Net's comparison runs on each kind of device, and which of its growing models come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Setup:
    """What is run on one kind of device."""

    table: str
    """The U-Net of the comparison with the survey."""
    table_batch: int
    models: tuple[tuple[int, int], ...]
    """(width, depth), the smallest first."""
    batch: int
    size: int
    limit_GB: float
    """Memory of a device in the second part."""
    budget: float
    budget_total: float | None = None
    interval: float = 2.0
    samples: int | None = None

    def name(self, width: int, depth: int) -> str:
        return f"unet:width={width},depth={depth},size={self.size}"


CPU = Setup(
    "unet:width=16", 32, ((8, 2), (8, 3), (16, 3), (32, 3), (32, 4), (64, 4), (64, 5)), 8, 32, 0.4, 30.0
)  # fmt: skip
CPU_QUICK = replace(
    CPU, table_batch=16, models=((8, 2), (16, 3), (32, 4), (64, 4)), budget=3.0, budget_total=70.0, interval=5.0,
    samples=256,
)  # fmt: skip
GPU = Setup(
    "unet:full", 32, ((32, 3), (32, 4), (64, 4), (96, 4), (128, 4), (128, 5)), 16, 256, 8.0, 30.0
)  # fmt: skip
"""8 GB is what the survey's cards have."""
GPU_QUICK = replace(
    GPU, table_batch=8, models=((64, 4), (128, 4), (128, 5)), batch=8, budget=4.0, budget_total=80.0, interval=5.0,
    samples=64,
)  # fmt: skip
"""Between slices activations go through the host's loopback: a step of a batch of 32 takes seconds."""


def nearest_first(names: Sequence[str], fits: Sequence[bool]) -> list[str]:
    """Of models that grow, those around the first that no longer fits: there the answer lies, should time run out.

    Four of which the last does not fit: 4 3 2 1. Six of which four fit: 5 4 6 3 2 1.
    """
    edge = fits.index(False) if False in fits else len(names)
    return [names[at] for at in sorted(range(len(names)), key=lambda at: (abs(at - edge + 0.5), -at))]
