"""Spoken-digit-like clips made from formants, so that everything runs before any recording has been fetched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.data.clip import DIGITS, to_clip
from scalewise.data.data import Data, DataRequest
from scalewise.data.samples import samples_to_make
from scalewise.data.wav import SAMPLE_RATE

CLIPS = 2_000

# Sound -> three formants in Hz, loudness of the voice, loudness of the hiss.
SOUNDS: dict[str, tuple[float, float, float, float, float]] = {
    "a": (750, 1200, 2500, 1.0, 0.0),
    "ah": (640, 1190, 2390, 1.0, 0.0),
    "aw": (570, 840, 2410, 1.0, 0.0),
    "e": (530, 1840, 2480, 1.0, 0.0),
    "ee": (270, 2290, 3010, 0.9, 0.0),
    "i": (390, 1990, 2550, 0.9, 0.0),
    "o": (500, 900, 2400, 1.0, 0.0),
    "oo": (300, 870, 2240, 0.8, 0.0),
    "r": (420, 1300, 1690, 0.7, 0.0),
    "w": (300, 610, 2200, 0.6, 0.0),
    "n": (250, 1100, 2300, 0.4, 0.0),
    "v": (250, 1100, 2300, 0.3, 0.1),
    "z": (250, 1700, 2500, 0.3, 0.4),
    "f": (300, 1100, 2300, 0.0, 0.2),
    "th": (300, 1400, 2500, 0.0, 0.15),
    "s": (300, 1700, 2500, 0.0, 0.6),
    "t": (300, 1800, 2600, 0.0, 0.9),
    "k": (300, 1900, 2600, 0.0, 0.5),
    ".": (300, 1500, 2500, 0.0, 0.0),
}
WORDS = (
    "z i r o oo",
    "w ah ah n",
    "t oo oo",
    "th r ee ee",
    "f aw aw r",
    "f a a i v",
    "s i . k s",
    "s e v ah n",
    "e i . t",
    "n a i n",
)
SPEAKERS = ((100.0, 0.94), (120.0, 1.0), (150.0, 1.04), (205.0, 1.14))
"""Pitch in Hz, and the factor on the formants that the length of the vocal tract gives."""
BANDWIDTHS = (80.0, 110.0, 160.0)


def synthetic_speech(request: DataRequest) -> Data:
    """2,000 clips (or as many as asked for), the digits taking turns; the same for the same seed."""
    items = SyntheticSpeech(samples_to_make(request, CLIPS), request.seed)
    clips = np.stack([speak(request.seed, index) for index in range(len(items))])[:, np.newaxis]
    labels = torch.arange(len(items)) % DIGITS
    return Data("synthetic speech", (torch.from_numpy(clips), labels), items)


class SyntheticSpeech(Dataset[tuple[Tensor, Tensor]]):
    """Makes one clip per sample when it is asked for."""

    def __init__(self, clips: int, seed: int) -> None:
        self.clips = clips
        self.seed = seed

    def __len__(self) -> int:
        return self.clips

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(speak(self.seed, index)[np.newaxis]), torch.tensor(index % DIGITS)


def speak(seed: int, index: int) -> npt.NDArray[np.float32]:
    """Clip `index`: its digit is the last decimal of the index, its speaker the next in turn."""
    random = np.random.default_rng((seed, index))
    pitch, tract = SPEAKERS[index // DIGITS % len(SPEAKERS)]
    length = int(random.uniform(0.3, 0.9) * SAMPLE_RATE)
    f1, f2, f3, voice, hiss = _trajectories(WORDS[index % DIGITS], length, random)

    # The voice falls towards the end of a word; each of its pulses makes every formant ring and die away.
    hertz = pitch * random.uniform(0.9, 1.1) * np.linspace(1.08, 0.88, length, dtype=np.float32)
    pulses = np.cumsum(hertz) / SAMPLE_RATE
    seconds_since_pulse = (pulses % 1) / hertz
    tract *= random.uniform(0.97, 1.03)
    voiced = np.zeros(length, dtype=np.float32)
    for formant, bandwidth in zip((f1, f2, f3), BANDWIDTHS, strict=True):
        ring = np.sin(2 * np.pi * tract * formant * seconds_since_pulse)
        voiced += np.exp(-np.pi * bandwidth * seconds_since_pulse) * ring

    noise = random.standard_normal(length + 1, dtype=np.float32)
    samples = voice * voiced + hiss * np.diff(noise) + 0.003 * noise[1:]
    silence = np.zeros(int(random.uniform(0, 0.05) * SAMPLE_RATE), dtype=np.float32)
    return to_clip(np.concatenate([silence, samples]))


def _trajectories(word: str, length: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Formants and loudness of every sample, gliding from the middle of one sound to the middle of the next."""
    sounds = np.array([SOUNDS[sound] for sound in word.split()])
    ends = np.cumsum(random.uniform(0.7, 1.3, len(sounds)))
    middles = (ends - np.diff(ends, prepend=0) / 2) / ends[-1] * length
    at = np.arange(length)
    return np.stack([np.interp(at, middles, values) for values in sounds.T]).astype(np.float32)
