"""Tests that all ways to load give the same samples in the same order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scalewise.core.errors import UserError
from scalewise.core.training_options import read_load
from scalewise.data.dataset import Data, DataRequest
from scalewise.data.speech import SpeechFiles, load_speech
from scalewise.runtime import feed
from scalewise.runtime.feed import Resident, Streamed, kept_bytes, make_feed, whole, why_not_resident
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
def test_every_feed_gives_the_requested_rows(load: str, kind: str, speech: Data) -> None:
    feed = make_feed(speech, load, CPU)
    assert feed.kind == kind
    inputs, targets = whole(speech)
    batches = list(feed.batches(ROWS))
    assert len(batches) == len(ROWS)
    for rows, (loaded_inputs, loaded_targets) in zip(ROWS, batches, strict=True):
        assert torch.equal(loaded_inputs, inputs[rows])
        assert torch.equal(loaded_targets, targets[rows])


@pytest.mark.parametrize(("load", "ahead"), [("device", 0), ("stream", 0), ("stream:workers=2", 2)])
def test_rows_are_requested_one_batch_ahead_per_loader(load: str, ahead: int, speech: Data) -> None:
    requested = 0

    def rows() -> Iterator[torch.Tensor]:
        nonlocal requested
        for requested in range(1, 7):
            yield torch.tensor([requested - 1])

    inputs, _ = whole(speech)
    for number, (loaded, _) in enumerate(make_feed(speech, load, CPU).as_asked(rows())):
        assert torch.equal(loaded, inputs[number : number + 1])
        assert requested == min(6, number + 1 + ahead)
    assert requested == 6


@pytest.mark.parametrize("load", ["device", "stream"])
def test_without_rows_there_are_no_batches(load: str, speech: Data) -> None:
    assert list(make_feed(speech, load, CPU).batches([])) == []


@pytest.mark.parametrize("load", ["device", "stream", "files"])
def test_loading_draws_no_random_numbers(load: str, speech: Data) -> None:
    before = torch.get_rng_state()
    list(make_feed(speech, load, CPU).batches(ROWS))
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_in_files_are_streamed_or_decoded(speech: Data) -> None:
    assert isinstance(speech.items, SpeechFiles)
    in_files = Data("files", items=speech.items)
    assert isinstance(make_feed(in_files, "auto", CPU), Streamed)
    assert isinstance(make_feed(in_files, "device", CPU), Resident)
    for decoded, expected in zip(whole(in_files), whole(speech), strict=True):
        assert torch.equal(decoded, expected)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("disk", "unknown way to load 'disk'; valid: auto, device, stream, files"),
        ("stream:thread=1", "unknown option of --load stream 'thread'"),
        ("files:workers=-1", "workers is '-1'; it must be a whole number from 0"),
        ("auto:workers=1", "--load auto takes no options, got 'auto:workers=1'"),
        ("files", "--load files needs samples stored in files; these are not (numbers)"),
    ],
)
def test_invalid_load_options_are_refused(load: str, message: str) -> None:
    data = Data("numbers", (torch.zeros(4, 1), torch.zeros(4)))
    with pytest.raises(UserError, match=re.escape(message)):
        make_feed(data, load, CPU)


def test_load_options_are_parsed_without_data() -> None:
    assert [read_load(load) for load in ("auto", "files", "stream:workers=4")] == [
        ("auto", 0),
        ("files", 0),
        ("stream", 4),
    ]
    with pytest.raises(UserError, match="--load device takes no options, got 'device:workers=1'"):
        read_load("device:workers=1")


def test_samples_are_streamed_if_they_do_not_fit_next_to_the_model() -> None:
    """46 MiB of weights with Adam take 184 MiB with gradients and states."""
    MiB = 2**20
    assert why_not_resident(92 * MiB, 184 * MiB, 0) == ""
    assert why_not_resident(92 * MiB, 368 * MiB, 184 * MiB) == ""
    assert why_not_resident(92 * MiB, 367 * MiB, 184 * MiB) == (
        "samples are streamed from host memory: their 92.0 MiB exceed half of the 183.0 MiB free on the device next to "
        "184.0 MiB of weights and optimizer states (--load device keeps them on the device anyway)"
    )
    assert "half of the 0 B free on the device next to" in why_not_resident(92 * MiB, 45 * MiB, 184 * MiB)


def test_streaming_for_lack_of_memory_is_explained(speech: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "free_bytes", lambda _: 1000)
    streamed = make_feed(speech, "auto", torch.device("cuda"))
    assert isinstance(streamed, Streamed)
    assert "exceed half of the 1000 B free on the device (" in streamed.why
    assert make_feed(speech, "stream", torch.device("cuda")).why == ""  # as requested
    assert isinstance(make_feed(speech, "auto", CPU), Resident)  # already in device memory


def test_bytes_that_a_model_keeps_on_its_device() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 1, bias=False))
    model[1].requires_grad_(False)
    assert kept_bytes(model, "adam") == 4 * (110 + 3 * 100)
    assert kept_bytes(model, "sgd") == kept_bytes(model, None) == 4 * (110 + 100)
