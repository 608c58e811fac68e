"""Text samples, whose targets are the next bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data, DataRequest
from scalewise.models.transformer import load_text


def tensors_of(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    assert data.tensors is not None
    return data.tensors


def test_targets_are_the_next_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abcdefgh")
    data = load_text(DataRequest(tmp_path / "a.txt"), context=3, vocabulary=256)
    inputs, targets = tensors_of(data)
    assert [bytes(row.tolist()) for row in inputs] == [b"abc", b"def"]
    assert [bytes(row.tolist()) for row in targets] == [b"bcd", b"efg"]
    assert data.source == f"2 samples of text in {tmp_path / 'a.txt'}"


def test_files_of_a_folder_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "2.txt").write_text("second")
    (tmp_path / "1.txt").write_text("first")
    inputs, _ = tensors_of(load_text(DataRequest(tmp_path, samples=1), context=11, vocabulary=256))
    assert bytes(inputs[0].tolist()) == b"first\nsecon"


def test_equal_seeds_generate_equal_sentences() -> None:
    data = load_text(DataRequest(samples=4, seed=3), context=50, vocabulary=128)
    inputs, targets = tensors_of(data)
    assert data.source == "generated text"
    assert inputs.shape == targets.shape == (4, 50)
    assert torch.equal(inputs, tensors_of(load_text(DataRequest(samples=4, seed=3), 50, 128))[0])
    assert not torch.equal(inputs, tensors_of(load_text(DataRequest(samples=4, seed=4), 50, 128))[0])
    assert b". " in bytes(inputs.flatten().tolist())


def test_error_for_text_that_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(UserError, match="has 5 bytes; one sample of context 5 needs 6"):
        load_text(DataRequest(tmp_path), context=5, vocabulary=256)
    with pytest.raises(UserError, match="--samples is 3, but there are only 2 samples"):
        load_text(DataRequest(tmp_path, samples=3), context=2, vocabulary=256)
    with pytest.raises(UserError, match="byte 116, but the vocabulary is 100"):
        load_text(DataRequest(tmp_path), context=4, vocabulary=100)


def test_error_names_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file or folder: '.*gone\.txt'"):
        load_text(DataRequest(tmp_path / "gone.txt"), context=4, vocabulary=256)
    with pytest.raises(UserError, match=r"no \.txt files in"):
        load_text(DataRequest(tmp_path), context=4, vocabulary=256)
