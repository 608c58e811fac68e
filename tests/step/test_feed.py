"""However samples come, they are the same samples in the same order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scalewise.data.data import Data, DataRequest
from scalewise.data.speech import SpeechFiles, load_speech
from scalewise.errors import UserError
from scalewise.step.feed import Resident, Streamed, make_feed, whole
from tests.data.conftest import write_wav

CPU = torch.device("cpu")
ROWS = [torch.tensor([4, 0]), torch.tensor([1, 5]), torch.tensor([3])]


@pytest.fixture
def speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(6):
        write_wav(tmp_path / f"{number}_theo_0.wav", [100 * number + step for step in range(50)])
    return load_speech(DataRequest(tmp_path))


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        ("auto", "device"),
        ("device", "device"),
        ("stream", "stream"),
        ("stream:workers=1", "stream"),
        ("files", "files"),
        ("files:workers=1", "files"),
    ],
)
def test_every_feed_gives_the_rows_it_was_told(load: str, kind: str, speech: Data) -> None:
    feed = make_feed(speech, load, CPU)
    assert feed.kind == kind
    inputs, targets = whole(speech)
    batches = list(feed.batches(ROWS))
    assert len(batches) == len(ROWS)
    for rows, (found_inputs, found_targets) in zip(ROWS, batches, strict=True):
        assert torch.equal(found_inputs, inputs[rows])
        assert torch.equal(found_targets, targets[rows])


@pytest.mark.parametrize(("load", "ahead"), [("device", 0), ("stream", 0), ("stream:workers=2", 2)])
def test_rows_are_asked_for_as_they_are_loaded_one_batch_ahead_for_each_loader(
    load: str, ahead: int, speech: Data
) -> None:
    asked = 0

    def rows() -> Iterator[torch.Tensor]:
        nonlocal asked
        for asked in range(1, 7):
            yield torch.tensor([asked - 1])

    inputs, _ = whole(speech)
    for number, (found, _) in enumerate(make_feed(speech, load, CPU).as_asked(rows())):
        assert torch.equal(found, inputs[number : number + 1])
        assert asked == min(6, number + 1 + ahead)
    assert asked == 6


@pytest.mark.parametrize("load", ["device", "stream"])
def test_no_rows_no_batches(load: str, speech: Data) -> None:
    assert list(make_feed(speech, load, CPU).batches([])) == []


@pytest.mark.parametrize("load", ["device", "stream", "files"])
def test_feeding_draws_no_random_numbers(load: str, speech: Data) -> None:
    before = torch.get_rng_state()
    list(make_feed(speech, load, CPU).batches(ROWS))
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_that_lie_in_files_only_are_streamed_or_decoded(speech: Data) -> None:
    assert isinstance(speech.items, SpeechFiles)
    in_files = Data("files", items=speech.items)
    assert isinstance(make_feed(in_files, "auto", CPU), Streamed)
    assert isinstance(make_feed(in_files, "device", CPU), Resident)
    for found, expected in zip(whole(in_files), whole(speech), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("disk", "unknown way to load 'disk'; valid: auto, device, stream, files"),
        ("stream:thread=1", "unknown option of --load stream 'thread'"),
        ("files:workers=-1", "workers is '-1'; it must be a whole number from 0"),
        ("auto:workers=1", "--load auto takes no options, got 'auto:workers=1'"),
        ("files", "--load files needs samples that lie in files; these do not (numbers)"),
    ],
)
def test_other_ways_are_refused(load: str, message: str) -> None:
    data = Data("numbers", (torch.zeros(4, 1), torch.zeros(4)))
    with pytest.raises(UserError, match=re.escape(message)):
        make_feed(data, load, CPU)
