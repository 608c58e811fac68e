"""One spoken digit as the models take it: 1.5 seconds, its loudest sample at 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CLIP_SAMPLES = 12_000
DIGITS = 10


def to_clip(samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Cut or zero-padded to 12,000 samples, then divided by the peak; silence stays zeros."""
    clip = np.zeros(CLIP_SAMPLES, dtype=np.float32)
    used = samples[:CLIP_SAMPLES]
    clip[: len(used)] = used
    peak = np.abs(clip).max()
    if peak > 0:
        clip /= peak
    return clip
