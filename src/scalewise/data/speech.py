"""Spoken digits from a folder of recordings, or synthetic ones where there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.data.cache import cache_folder
from scalewise.data.clip import to_clip
from scalewise.data.data import Data, DataRequest
from scalewise.data.decoded import decoded
from scalewise.data.samples import samples_to_use
from scalewise.data.synthetic_speech import synthetic_speech
from scalewise.data.wav import read_wav
from scalewise.errors import UserError

ENVIRONMENT = "SCALEWISE_SPEECH"
NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")


def load_speech(request: DataRequest) -> Data:
    """From `--data`, else $SCALEWISE_SPEECH, else what `scalewise data speech` fetched, else synthesised."""
    folder = find_speech(request)
    if folder is None:
        return synthetic_speech(request)
    every = recordings(folder)
    chosen = samples_to_use(request, len(every), str(folder))
    labels = torch.tensor([label_of(every[index]) for index in chosen])
    paths = [every[index] for index in chosen]
    clips = torch.from_numpy(decoded(folder, every))
    if len(chosen) < len(every):
        clips = clips[chosen]
    return Data(f"{len(paths):,} recordings in {folder}", (clips, labels), SpeechFiles(paths))


def find_speech(request: DataRequest) -> Path | None:
    """The folder of recordings to use; None means that there is none."""
    if request.folder is not None:
        return request.folder
    if named := os.environ.get(ENVIRONMENT):
        return Path(named)
    fetched = speech_cache()
    return fetched if fetched.is_dir() else None


def speech_cache() -> Path:
    """Where `scalewise data speech` puts the recordings."""
    return cache_folder() / "speech"


def recordings(folder: Path) -> list[Path]:
    """The wav files of a folder in the order of their names."""
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a folder of recordings ({{digit}}_{{speaker}}_{{take}}.wav)")
    paths = sorted(folder.glob("*.wav"))
    if not paths:
        raise UserError(
            f"no wav files in '{folder}'; recordings named {{digit}}_{{speaker}}_{{take}}.wav are expected there"
        )
    return paths


def label_of(path: Path) -> int:
    """The digit that is spoken, from the file's name."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise UserError(
            f"{path} is not named {{digit}}_{{speaker}}_{{take}}.wav, like 7_theo_12.wav, so its label is unknown"
        )
    return int(match[1])


class SpeechFiles(Dataset[tuple[Tensor, Tensor]]):
    """Reads and decodes one wav file per sample, as the study's loop did."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.paths[index]
        clip = to_clip(read_wav(path))
        return torch.from_numpy(clip[np.newaxis]), torch.tensor(label_of(path))
