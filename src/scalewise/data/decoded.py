"""Decodes a folder of recordings once and keeps the result as one array file in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalewise.data.cache import cache_folder
from scalewise.data.clip import CLIP_SAMPLES, to_clip
from scalewise.data.wav import read_wav

Clips = npt.NDArray[np.float32]


def decoded(folder: Path, paths: Sequence[Path]) -> Clips:
    """All clips as [N, 1, 12000]: from the cache if names, sizes and times still agree, else decoded and cached."""
    fingerprint = _fingerprint(paths)
    # One cache file per folder: a changed folder overwrites its own.
    cached = cache_folder() / f"speech-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.npz"
    clips = _read(cached, fingerprint, len(paths))
    if clips is None:
        clips = np.stack([to_clip(read_wav(path)) for path in paths])[:, np.newaxis]
        # A cache that cannot be written costs the next run a second, and this one nothing.
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
    # The zip container carries a checksum per array, so a damaged file is noticed and not trained on.
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
