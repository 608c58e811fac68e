"""Speech data: clips, labels, the cache of decoded clips, and the choice of the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data, DataRequest
from scalewise.data.speech import load_speech, read_wav, speech_cache, synthetic_speech
from tests.data.conftest import write_wav


def loaded(folder: Path, samples: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    data = load_speech(DataRequest(folder, samples))
    assert data.tensors is not None
    return data.tensors


def test_clips_are_padded_truncated_and_divided_by_their_peak(recordings: Path) -> None:
    clips, labels = loaded(recordings)
    assert clips.shape == (3, 1, 12_000)
    assert clips.dtype == torch.float32
    assert labels.tolist() == [0, 3, 7]
    assert clips[0, 0, 11_998:].tolist() == [0.25, 1.0]
    assert clips[1, 0, :4].tolist() == [0.5, -1.0, 0.25, 0.0]
    assert clips[2].abs().max() == 0


def test_source_names_the_folder(recordings: Path) -> None:
    assert load_speech(DataRequest(recordings)).source == f"3 recordings in {recordings}"


def test_items_equal_the_tensors(recordings: Path) -> None:
    data = load_speech(DataRequest(recordings))
    assert data.tensors is not None
    assert data.items is not None
    [(clips, labels)] = DataLoader(data.items, batch_size=3)
    assert torch.equal(clips, data.tensors[0])
    assert torch.equal(labels, data.tensors[1])


def test_samples_are_evenly_spaced_over_the_sorted_files(tmp_path: Path) -> None:
    for digit in range(10):
        for take in range(2):
            write_wav(tmp_path / f"{digit}_theo_{take}.wav", [digit + 1])
    assert loaded(tmp_path, samples=5)[1].tolist() == [0, 2, 4, 6, 8]
    assert len(load_speech(DataRequest(tmp_path, 5))) == 5


@pytest.mark.parametrize(
    ("samples", "message"), [(4, "--samples is 4, but there are only 3"), (0, "at least 1, not 0")]
)
def test_error_for_an_invalid_number_of_samples(recordings: Path, samples: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loaded(recordings, samples)


def test_recordings_are_decoded_again_only_after_a_change(recordings: Path, cache: Path) -> None:
    first, _ = loaded(recordings)
    [cached] = cache.iterdir()
    written = cached.stat().st_mtime_ns
    assert torch.equal(loaded(recordings)[0], first)
    assert cached.stat().st_mtime_ns == written
    write_wav(recordings / "3_theo_0.wav", [10, 20, 30])
    assert loaded(recordings)[0][1, 0, 2] == 1.0
    assert list(cache.iterdir()) == [cached]


@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
def test_recordings_are_decoded_again_if_the_cache_is_damaged(recordings: Path, cache: Path, damage: str) -> None:
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


def test_clips_are_loaded_if_the_cache_cannot_be_written(recordings: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert loaded(recordings)[0].shape == (3, 1, 12_000)


def test_order_in_which_folders_are_tried(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_speech(DataRequest(samples=10)).source == "synthetic speech"
    speech_cache().mkdir(parents=True)
    write_wav(speech_cache() / "1_theo_0.wav", [1])
    assert load_speech(DataRequest()).source == f"1 recordings in {speech_cache()}"
    monkeypatch.setenv("SCALEWISE_SPEECH", str(recordings))
    assert load_speech(DataRequest()).source == f"3 recordings in {recordings}"
    assert load_speech(DataRequest(speech_cache())).source == f"1 recordings in {speech_cache()}"


def test_error_for_a_folder_without_recordings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone' is not a folder of recordings"):
        loaded(tmp_path / "gone")
    with pytest.raises(
        UserError, match=r"no wav files in '.*'; .* recordings named \{digit\}_\{speaker\}_\{take\}\.wav"
    ):
        loaded(tmp_path)


def test_error_for_a_name_without_a_digit(recordings: Path) -> None:
    write_wav(recordings / "seven_theo_1.wav", [1])
    with pytest.raises(UserError, match=r"the label of .*seven_theo_1\.wav is unknown"):
        loaded(recordings)


def test_error_names_the_invalid_file(recordings: Path) -> None:
    bad = write_wav(recordings / "5_theo_5.wav", [1, 2], channels=2)
    with pytest.raises(UserError, match=f"{bad} is stereo"):
        loaded(recordings)


def real_recordings() -> Path:
    shared = Path(__file__).parents[3] / "shared" / "speech" / "recordings"
    return Path(os.environ.get("SCALEWISE_SPEECH", shared))


REAL = real_recordings()


@pytest.mark.skipif(not REAL.is_dir(), reason="the recordings are not on this machine")
def test_recordings_of_the_study_are_2000_clips_of_ten_digits() -> None:
    clips, labels = loaded(REAL)
    assert clips.shape == (2_000, 1, 12_000)
    assert torch.bincount(labels).tolist() == [200] * 10
    assert torch.equal(clips.abs().amax(2), torch.ones(2_000, 1))


def test_samples_are_read(tmp_path: Path) -> None:
    assert read_wav(write_wav(tmp_path / "a.wav", [0, 1, -32768, 32767])).tolist() == [0, 1, -32768, 32767]


@pytest.mark.parametrize(
    ("channels", "rate", "sample_bytes", "problem"),
    [
        (2, 8_000, 2, "is stereo, 8,000 Hz, 16-bit"),
        (1, 44_100, 2, "is mono, 44,100 Hz, 16-bit"),
        (1, 8_000, 1, "is mono, 8,000 Hz, 8-bit"),
        (6, 8_000, 2, "is 6 channels, 8,000 Hz, 16-bit"),
    ],
)
def test_error_names_the_format_of_the_file(
    tmp_path: Path, channels: int, rate: int, sample_bytes: int, problem: str
) -> None:
    path = write_wav(tmp_path / "a.wav", [1] * 12, channels, rate, sample_bytes)
    with pytest.raises(UserError) as error:
        read_wav(path)
    assert str(error.value) == f"{path} {problem}; a mono, 8,000 Hz, 16-bit wav file is expected"


def test_error_names_the_samples_of_a_truncated_file(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", range(1000))
    path.write_bytes(path.read_bytes()[:-1001])
    with pytest.raises(UserError, match=r"a\.wav is truncated: it has 499 of the 1,000 samples"):
        read_wav(path)


@pytest.mark.parametrize("size_bytes", [4, 10, 20, 30, 41])
def test_error_for_a_truncated_header(tmp_path: Path, size_bytes: int) -> None:
    path = write_wav(tmp_path / "a.wav", range(100))
    path.write_bytes(path.read_bytes()[:size_bytes])
    with pytest.raises(UserError, match=r"a\.wav is .*wav file is expected"):
        read_wav(path)


def test_error_for_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    with pytest.raises(UserError, match=r"a\.wav is empty; a mono"):
        read_wav(tmp_path / "a.wav")


def test_error_for_a_file_without_samples(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.wav has no samples"):
        read_wav(write_wav(tmp_path / "a.wav", []))


def test_error_for_another_format(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"ID3" + bytes(200))
    with pytest.raises(UserError, match=r"a\.wav is not a readable wav file"):
        read_wav(tmp_path / "a.wav")


def test_error_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*gone\.wav"):
        read_wav(tmp_path / "gone.wav")


def clips_of(data: Data) -> torch.Tensor:
    assert data.tensors is not None
    return data.tensors[0]


def test_number_of_clips() -> None:
    data = synthetic_speech(DataRequest())
    assert data.tensors is not None
    assert data.source == "synthetic speech"
    assert data.tensors[0].shape == (2_000, 1, 12_000)
    assert torch.bincount(data.tensors[1]).tolist() == [200] * 10
    assert torch.equal(data.tensors[0].abs().amax(2), torch.ones(2_000, 1))
    assert len(synthetic_speech(DataRequest(samples=7))) == 7


def test_equal_seeds_give_equal_clips() -> None:
    first, again, other = (clips_of(synthetic_speech(DataRequest(samples=20, seed=seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    assert len({clip.numpy().tobytes() for clip in first}) == 20


def test_clips_have_different_lengths() -> None:
    ends = [int(clip.flatten().nonzero().max()) for clip in clips_of(synthetic_speech(DataRequest(samples=100)))]
    assert 2_000 < min(ends) < 4_000 < 6_000 < max(ends) < 8_000


def test_items_of_synthetic_speech_equal_the_tensors() -> None:
    data = synthetic_speech(DataRequest(samples=12))
    assert data.tensors is not None
    assert data.items is not None
    clip, label = data.items[11]
    assert torch.equal(clip, data.tensors[0][11])
    assert label == data.tensors[1][11] == 1
