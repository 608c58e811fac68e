"""`scalewise.train` in Python: its result, printed text and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

import scalewise
from scalewise.training.results import Report
from tests import tiny
from tests.data.conftest import write_wav


def test_a_workload_object_is_trained() -> None:
    reports: list[Report] = []
    result = scalewise.train(
        tiny.float32(), batch=4, epochs=30, device_kind="cpu", learning_rate=0.3, on_report=reports.append
    )
    assert (result.workload, result.strategy, result.batch) == ("float32", "single", 4)
    assert (result.steps, result.epochs) == (120, 30)
    assert result.accuracy == 1.0
    assert reports[-1].steps_done == 120
    assert "4 global" in str(result)
    assert "4 global" in result._repr_html_()


def test_batch_per_device_sets_the_global_batch() -> None:
    result = scalewise.train("tests.tiny:float32", batch_per_device=3, steps=2)
    assert (result.batch, result.batch_per_device) == (3, 3)


def test_the_default_batch_is_20() -> None:
    assert scalewise.train("tests.tiny:float32", samples=20, steps=1).batch == 20


def test_bad_values_raise_a_user_error() -> None:
    with pytest.raises(scalewise.UserError, match=r"unknown device kind 'gpu' .*; valid: cpu, cuda, slice, auto"):
        scalewise.train("tests.tiny:float32", device_kind="gpu")
    with pytest.raises(scalewise.UserError, match="--epochs 1 and --steps 1 exclude each other"):
        scalewise.train("tests.tiny:float32", epochs=1, steps=1)


def test_an_infinite_loss_raises_run_failed() -> None:
    with pytest.raises(scalewise.RunFailed, match=r"the loss became (inf|nan) at step 1"):
        scalewise.train(tiny.huge_steps(), batch=4, steps=3)


@pytest.mark.slow
def test_weights_do_not_depend_on_how_samples_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for number in range(5):
        write_wav(recordings / f"{number}_theo_0.wav", [(number * 97 + step * 13) % 300 for step in range(400)])
    for load in ("device", "stream:workers=1", "files"):
        result = scalewise.train(
            "conv", data=recordings, batch=2, steps=3, load=load, checkpoint=tmp_path / load, device_kind="cpu"
        )
        assert result.load == load.partition(":")[0]
    expected = load_file(tmp_path / "device")
    for load in ("stream:workers=1", "files"):
        weights = load_file(tmp_path / load)
        assert expected.keys() == weights.keys()
        assert all(expected[name].equal(weights[name]) for name in expected)


def test_the_trace_opens_in_perfetto(tmp_path: Path) -> None:
    result = scalewise.train("tests.tiny:float32", batch=4, steps=40, trace=tmp_path / "t.json", device_kind="cpu")
    document = json.loads((tmp_path / "t.json").read_text())
    events = document["traceEvents"]
    assert {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}} in events
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans} == set(result.phases)
    assert {event["args"]["step"] for event in spans} == set(range(32))
    assert min(event["ts"] for event in spans) == 0
    assert all(event["dur"] >= 0 for event in spans)
    ends = [event["ts"] + event["dur"] for event in spans]
    assert all(begin["ts"] >= end - 1e-3 for begin, end in zip(spans[1:], ends[:-1], strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_accuracy_is_none_if_the_workload_defines_none() -> None:
    result = scalewise.train(replace(tiny.float32(), accuracy=None), batch=4, steps=2)
    assert result.accuracy is None
    assert "accuracy" not in str(result)
