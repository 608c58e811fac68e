"""Reads the one kind of wav file the study used: mono, 8 kHz, 16-bit."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalewise.errors import UserError

SAMPLE_RATE = 8_000
EXPECTED = f"a mono, {SAMPLE_RATE:,} Hz, 16-bit wav file is expected"


def read_wav(path: Path) -> npt.NDArray[np.int16]:
    """The samples of a recording; anything but a whole, non-empty recording of the expected kind is refused."""
    try:
        with path.open("rb") as file, wave.open(file) as wav:
            channels, sample_bytes, rate, frames = wav.getparams()[:4]
            data = wav.readframes(frames)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except EOFError:
        size = path.stat().st_size
        found = "is empty" if size == 0 else f"is truncated: {size} bytes end within its header"
        raise UserError(f"{path} {found}; {EXPECTED}") from None
    except wave.Error as error:
        raise UserError(f"{path} is not a readable wav file ({error}); {EXPECTED}") from None
    if (channels, sample_bytes, rate) != (1, 2, SAMPLE_RATE):
        kind = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
        raise UserError(f"{path} is {kind}, {rate:,} Hz, {8 * sample_bytes}-bit; {EXPECTED}")
    if frames == 0:
        raise UserError(f"{path} holds no samples; {EXPECTED}")
    if len(data) != 2 * frames:
        raise UserError(f"{path} is truncated: its header promises {frames:,} samples, {len(data) // 2:,} are there")
    return np.frombuffer(data, dtype="<i2")
