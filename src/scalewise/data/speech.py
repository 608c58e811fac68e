"""The study's data: recordings of spoken digits, from a folder of audio files or synthetic."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import wave
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.core.errors import UserError
from scalewise.core.files import cache_folder
from scalewise.data.dataset import Data, DataRequest, samples_to_make, samples_to_use

CLIPS = 2_000

# Sound -> three formants in Hz, loudness of the voice, loudness of the noise.
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
"""Pitch in Hz, and the factor by which the length of the vocal tract scales the formants."""
BANDWIDTHS = (80.0, 110.0, 160.0)
"""Bandwidth of each formant in Hz."""


def synthetic_speech(request: DataRequest) -> Data:
    """Generate 2,000 clips (or `request.samples`) of successive digits. Equal seeds give equal clips."""
    items = SyntheticSpeech(samples_to_make(request, CLIPS), request.seed)
    clips = np.stack([synthesize_clip(request.seed, index) for index in range(len(items))])[:, np.newaxis]
    labels = torch.arange(len(items)) % DIGITS
    return Data("synthetic speech", (torch.from_numpy(clips), labels), items)


class SyntheticSpeech(Dataset[tuple[Tensor, Tensor]]):
    """Dataset that synthesises one clip per sample."""

    def __init__(self, clips: int, seed: int) -> None:
        self.clips = clips
        self.seed = seed

    def __len__(self) -> int:
        return self.clips

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(synthesize_clip(self.seed, index)[np.newaxis]), torch.tensor(index % DIGITS)


def synthesize_clip(seed: int, index: int) -> npt.NDArray[np.float32]:
    """Synthesise clip `index`. Its digit is the last digit of the index; the speaker changes every ten clips."""
    random = np.random.default_rng((seed, index))
    pitch, tract = SPEAKERS[index // DIGITS % len(SPEAKERS)]
    length = int(random.uniform(0.3, 0.9) * SAMPLE_RATE)
    f1, f2, f3, voice, hiss = _trajectories(WORDS[index % DIGITS], length, random)

    # The pitch falls towards the end of a word. Each glottal pulse excites every formant, which then decays.
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
    """Return formants and loudness of every sample, interpolated from the middle of each sound to that of the next."""
    sounds = np.array([SOUNDS[sound] for sound in word.split()])
    ends = np.cumsum(random.uniform(0.7, 1.3, len(sounds)))
    middles = (ends - np.diff(ends, prepend=0) / 2) / ends[-1] * length
    positions = np.arange(length)
    return np.stack([np.interp(positions, middles, values) for values in sounds.T]).astype(np.float32)


SAMPLE_RATE = 8_000
EXPECTED = f"a mono, {SAMPLE_RATE:,} Hz, 16-bit wav file is expected"


def read_wav(path: Path) -> npt.NDArray[np.int16]:
    """Return the samples of a recording; raise UserError if it is empty, truncated or of another format."""
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
        problem = "is empty" if size == 0 else f"is truncated: its {size} bytes are less than a header"
        raise UserError(f"{path} {problem}; {EXPECTED}") from None
    except wave.Error as error:
        raise UserError(f"{path} is not a readable wav file ({error}); {EXPECTED}") from None
    if (channels, sample_bytes, rate) != (1, 2, SAMPLE_RATE):
        layout = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
        raise UserError(f"{path} is {layout}, {rate:,} Hz, {8 * sample_bytes}-bit; {EXPECTED}")
    if frames == 0:
        raise UserError(f"{path} has no samples; {EXPECTED}")
    if len(data) != 2 * frames:
        raise UserError(f"{path} is truncated: it has {len(data) // 2:,} of the {frames:,} samples given in its header")
    return np.frombuffer(data, dtype="<i2")


CLIP_SAMPLES = 12_000
DIGITS = 10


def to_clip(samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Truncate or pad to 12,000 samples with zeros, then divide by the peak; silence stays zero."""
    clip = np.zeros(CLIP_SAMPLES, dtype=np.float32)
    used = samples[:CLIP_SAMPLES]
    clip[: len(used)] = used
    peak = np.abs(clip).max()
    if peak > 0:
        clip /= peak
    return clip


Clips = npt.NDArray[np.float32]


def decode_clips(folder: Path, paths: Sequence[Path]) -> Clips:
    """Return all clips as [N, 1, 12000], from the cache if no file has changed; otherwise decode and cache them."""
    fingerprint = _fingerprint(paths)
    # One cache file per folder, which is overwritten after a change.
    cached = cache_folder() / f"speech-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.npz"
    clips = _read(cached, fingerprint, len(paths))
    if clips is None:
        clips = np.stack([to_clip(read_wav(path)) for path in paths])[:, np.newaxis]
        # The cache is optional: if it cannot be written, the next run decodes again.
        with contextlib.suppress(OSError):
            _write(cached, fingerprint, clips)
    return clips


def _fingerprint(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read(cached: Path, fingerprint: str, count: int) -> Clips | None:
    # The zip format has a checksum per array, so a damaged file raises an error.
    with (
        contextlib.suppress(OSError, ValueError, KeyError, EOFError, IndexError, zipfile.BadZipFile),
        cached.open("rb") as file,
    ):
        arrays = np.load(file)
        clips: Clips = arrays["clips"] if str(arrays["fingerprint"]) == fingerprint else np.empty(0, np.float32)
        if clips.shape == (count, 1, CLIP_SAMPLES) and clips.dtype == np.float32:
            return clips
    return None


def _write(cached: Path, fingerprint: str, clips: Clips) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=cached.parent, prefix=cached.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, clips=clips, fingerprint=np.array(fingerprint))
        Path(name).replace(cached)
    except BaseException:
        Path(name).unlink()
        raise


ENVIRONMENT = "SCALEWISE_SPEECH"
NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")


def load_speech(request: DataRequest) -> Data:
    """Load clips and labels.

    The folder is that of `--data`, else of $SCALEWISE_SPEECH, else of `scalewise data speech`. Without any of them,
    clips are synthesised.
    """
    folder = find_speech(request)
    if folder is None:
        return synthetic_speech(request)
    paths = recordings(folder)
    indices = samples_to_use(request, len(paths), str(folder))
    used = [paths[index] for index in indices]
    labels = torch.tensor([label_of(path) for path in used])
    clips = torch.from_numpy(decode_clips(folder, paths))
    if len(indices) < len(paths):
        clips = clips[indices]
    return Data(f"{len(used):,} recordings in {folder}", (clips, labels), SpeechFiles(used))


def find_speech(request: DataRequest) -> Path | None:
    """Return the folder of recordings to use, or None."""
    if request.folder is not None:
        return request.folder
    if folder := os.environ.get(ENVIRONMENT):
        return Path(folder)
    cache = speech_cache()
    return cache if cache.is_dir() else None


def speech_cache() -> Path:
    """Return the folder to which `scalewise data speech` downloads recordings."""
    return cache_folder() / "speech"


def recordings(folder: Path) -> list[Path]:
    """Return the wav files of a folder, sorted by name."""
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a folder of recordings ({{digit}}_{{speaker}}_{{take}}.wav)")
    paths = sorted(folder.glob("*.wav"))
    if not paths:
        raise UserError(f"no wav files in '{folder}'; it must have recordings named {{digit}}_{{speaker}}_{{take}}.wav")
    return paths


def label_of(path: Path) -> int:
    """Return the spoken digit from the file name."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise UserError(
            f"the label of {path} is unknown; name the file {{digit}}_{{speaker}}_{{take}}.wav, such as 7_theo_12.wav"
        )
    return int(match[1])


class SpeechFiles(Dataset[tuple[Tensor, Tensor]]):
    """Dataset that reads and decodes one wav file per sample, as the study's training loop does."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.paths[index]
        clip = to_clip(read_wav(path))
        return torch.from_numpy(clip[np.newaxis]), torch.tensor(label_of(path))
