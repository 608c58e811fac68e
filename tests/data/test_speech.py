"""Recordings become clips and labels, once; the folder is found where the user said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from scalewise.data.data import DataRequest
from scalewise.data.speech import load_speech, speech_cache
from scalewise.errors import UserError
from tests.data.conftest import write_wav


def loaded(folder: Path, samples: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    data = load_speech(DataRequest(folder, samples))
    assert data.tensors is not None
    return data.tensors


def test_clips_are_padded_cut_and_divided_by_their_peak(recordings: Path) -> None:
    clips, labels = loaded(recordings)
    assert clips.shape == (3, 1, 12_000)
    assert clips.dtype == torch.float32
    assert labels.tolist() == [0, 3, 7]
    assert clips[0, 0, 11_998:].tolist() == [0.25, 1.0]
    assert clips[1, 0, :4].tolist() == [0.5, -1.0, 0.25, 0.0]
    assert clips[2].abs().max() == 0


def test_says_where_the_recordings_are(recordings: Path) -> None:
    assert load_speech(DataRequest(recordings)).source == f"3 recordings in {recordings}"


def test_items_are_the_same_samples_read_one_by_one(recordings: Path) -> None:
    data = load_speech(DataRequest(recordings))
    assert data.tensors is not None
    assert data.items is not None
    [(clips, labels)] = DataLoader(data.items, batch_size=3)
    assert torch.equal(clips, data.tensors[0])
    assert torch.equal(labels, data.tensors[1])


def test_samples_are_spread_over_the_sorted_files(tmp_path: Path) -> None:
    for digit in range(10):
        for take in range(2):
            write_wav(tmp_path / f"{digit}_theo_{take}.wav", [digit + 1])
    assert loaded(tmp_path, samples=5)[1].tolist() == [0, 2, 4, 6, 8]
    assert len(load_speech(DataRequest(tmp_path, 5))) == 5


@pytest.mark.parametrize(("samples", "message"), [(4, "--samples 4 is more than the 3"), (0, "at least 1, not 0")])
def test_samples_that_are_not_there_are_refused(recordings: Path, samples: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loaded(recordings, samples)


def test_decodes_once_and_again_only_after_a_change(recordings: Path, cache: Path) -> None:
    first, _ = loaded(recordings)
    [cached] = cache.iterdir()
    written = cached.stat().st_mtime_ns
    assert torch.equal(loaded(recordings)[0], first)
    assert cached.stat().st_mtime_ns == written
    write_wav(recordings / "3_theo_0.wav", [10, 20, 30])
    assert loaded(recordings)[0][1, 0, 2] == 1.0
    assert list(cache.iterdir()) == [cached]


@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
def test_a_damaged_cache_is_decoded_again(recordings: Path, cache: Path, damage: str) -> None:
    first, _ = loaded(recordings)
    [cached] = cache.iterdir()
    content = bytearray(cached.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "flip":
        content[len(content) // 2] ^= 255
    else:
        content = bytearray(b"something else")
    cached.write_bytes(content)
    assert torch.equal(loaded(recordings)[0], first)
    assert cached.read_bytes() != content


def test_a_cache_that_cannot_be_written_does_no_harm(recordings: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert loaded(recordings)[0].shape == (3, 1, 12_000)


def test_the_folder_is_looked_for_in_order(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_speech(DataRequest(samples=10)).source == "synthetic speech"
    speech_cache().mkdir(parents=True)
    write_wav(speech_cache() / "1_theo_0.wav", [1])
    assert load_speech(DataRequest()).source == f"1 recordings in {speech_cache()}"
    monkeypatch.setenv("SCALEWISE_SPEECH", str(recordings))
    assert load_speech(DataRequest()).source == f"3 recordings in {recordings}"
    assert load_speech(DataRequest(speech_cache())).source == f"1 recordings in {speech_cache()}"


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone' is not a folder of recordings"):
        loaded(tmp_path / "gone")
    with pytest.raises(UserError, match=r"no wav files in '.*'; recordings named \{digit\}_\{speaker\}_\{take\}\.wav"):
        loaded(tmp_path)


def test_a_name_without_a_digit_is_refused(recordings: Path) -> None:
    write_wav(recordings / "seven_theo_1.wav", [1])
    with pytest.raises(UserError, match=r"seven_theo_1\.wav is not named"):
        loaded(recordings)


def test_one_bad_file_is_named(recordings: Path) -> None:
    bad = write_wav(recordings / "5_theo_5.wav", [1, 2], channels=2)
    with pytest.raises(UserError, match=f"{bad} is stereo"):
        loaded(recordings)


def real_recordings() -> Path:
    beside = Path(__file__).parents[3] / "shared" / "speech" / "recordings"
    return Path(os.environ.get("SCALEWISE_SPEECH", beside))


REAL = real_recordings()


@pytest.mark.skipif(not REAL.is_dir(), reason="the recordings are not here")
def test_the_studys_recordings_are_2000_of_ten_digits() -> None:
    clips, labels = loaded(REAL)
    assert clips.shape == (2_000, 1, 12_000)
    assert torch.bincount(labels).tolist() == [200] * 10
    assert torch.equal(clips.abs().amax(2), torch.ones(2_000, 1))
