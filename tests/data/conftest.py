"""Recordings that tests write, and a cache for each test."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import pytest


def write_wav(path: Path, samples: Sequence[int], channels: int = 1, rate: int = 8_000, sample_bytes: int = 2) -> Path:
    with wave.open(str(path), "wb") as wav:
        wav.setnchannels(channels)
        wav.setsampwidth(sample_bytes)
        wav.setframerate(rate)
        wav.writeframes(
            b"".join(sample.to_bytes(sample_bytes, "little", signed=sample_bytes > 1) for sample in samples)
        )
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache folder of the test; $SCALEWISE_SPEECH is not set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    return tmp_path / "cache" / "scalewise"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Three recordings: a short one, a silent one and one that is too long."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    write_wav(folder / "3_theo_0.wav", [100, -200, 50])
    write_wav(folder / "7_jackson_12.wav", [0] * 500)
    write_wav(folder / "0_nicolas_1.wav", [1] * 11_999 + [4] + [8] * 500)
    return folder
