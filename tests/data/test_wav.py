"""The wav reader takes one kind of file and names what it found in any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.data.wav import read_wav
from scalewise.errors import UserError
from tests.data.conftest import write_wav


def test_reads_the_samples(tmp_path: Path) -> None:
    assert read_wav(write_wav(tmp_path / "a.wav", [0, 1, -32768, 32767])).tolist() == [0, 1, -32768, 32767]


@pytest.mark.parametrize(
    ("channels", "rate", "sample_bytes", "found"),
    [
        (2, 8_000, 2, "is stereo, 8,000 Hz, 16-bit"),
        (1, 44_100, 2, "is mono, 44,100 Hz, 16-bit"),
        (1, 8_000, 1, "is mono, 8,000 Hz, 8-bit"),
        (6, 8_000, 2, "is 6 channels, 8,000 Hz, 16-bit"),
    ],
)
def test_names_the_kind_it_does_not_take(
    tmp_path: Path, channels: int, rate: int, sample_bytes: int, found: str
) -> None:
    path = write_wav(tmp_path / "a.wav", [1] * 12, channels, rate, sample_bytes)
    with pytest.raises(UserError) as caught:
        read_wav(path)
    assert str(caught.value) == f"{path} {found}; a mono, 8,000 Hz, 16-bit wav file is expected"


def test_tells_how_much_of_a_truncated_file_is_there(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", range(1000))
    path.write_bytes(path.read_bytes()[:-1001])
    with pytest.raises(UserError, match=r"a\.wav is truncated: its header promises 1,000 samples, 499 are there"):
        read_wav(path)


@pytest.mark.parametrize("kept", [4, 10, 20, 30, 41])
def test_a_file_cut_within_its_header_is_one_sentence(tmp_path: Path, kept: int) -> None:
    path = write_wav(tmp_path / "a.wav", range(100))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"a\.wav is .*wav file is expected"):
        read_wav(path)


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    with pytest.raises(UserError, match=r"a\.wav is empty; a mono"):
        read_wav(tmp_path / "a.wav")


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.wav holds no samples"):
        read_wav(write_wav(tmp_path / "a.wav", []))


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"ID3" + bytes(200))
    with pytest.raises(UserError, match=r"a\.wav is not a readable wav file"):
        read_wav(tmp_path / "a.wav")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*gone\.wav"):
        read_wav(tmp_path / "gone.wav")
