"""Training results as a table, as HTML and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from scalewise.core.statistics import interval_of
from scalewise.formats.train_result import BytesPerStep, Staleness, TrainResult, Updates

RESULT = TrainResult(
    workload="linear",
    data="synthetic speech",
    strategy="mirrored",
    options={"bucket_MB": 25.0},
    devices=2,
    device_kind="cpu",
    hosts=1,
    link=None,
    batch=21,
    batch_per_device=11,
    precision="fp32",
    steps=200,
    epochs=2,
    epoch_seconds=[2.0, 1.0],
    step_seconds=interval_of([0.01] * 20),
    loss=0.5,
    accuracy=0.975,
    phases_rank=0,
    phases={"forward": 0.006, "backward": 0.004},
    bytes_per_step=BytesPerStep(2048, None, 2048),
    parameters=12_102_220,
    execution="eager",
    load="device",
    peak_memory_bytes=None,
    samples_per_second=2050.0,
    notes=["trained on synthetic speech"],
)


def test_table_of_a_run() -> None:
    text = str(RESULT)
    for expected in (
        "linear  (12,102,220 parameters; synthetic speech)",
        "mirrored on 2 cpu devices, eager, fp32, data in device memory",
        "21 global, at most 11 per device",
        "200 steps, 2 full epochs; the first 180 steps are warm-up and not timed",
        "10 ms  [95% interval 10 ms to 10 ms, 20 timed]  2,050 samples/s",
        "0.5000, accuracy 97.50%",
        "2.0 KiB planned per step over all devices, not traced; the busiest device sends plus",
        "note: trained on synthetic speech",
    ):
        assert expected in text
    assert "60%" in text


@pytest.mark.parametrize(
    ("steps", "timed", "text"),
    [
        (1, 1, "1 step, 2 full epochs; all timed, no warm-up"),
        (20, 20, "20 steps, 2 full epochs; all timed, no warm-up"),
        (21, 20, "21 steps, 2 full epochs; the first step is warm-up and not timed"),
        (22, 20, "22 steps, 2 full epochs; the first 2 steps are warm-up and not timed"),
    ],
)
def test_text_of_the_warm_up(steps: int, timed: int, text: str) -> None:
    assert text in str(dataclasses.replace(RESULT, steps=steps, step_seconds=interval_of([0.01] * timed)))


def test_json_names_the_strategy_without_its_options() -> None:
    shown = dataclasses.replace(RESULT, spread="mirrored:bucket_MB=10")
    assert "mirrored:bucket_MB=10 on 2 cpu devices" in str(shown)
    assert shown.to_json().keys() == RESULT.to_json().keys()
    assert "spread" not in shown.to_json()


def test_a_step_of_an_asynchronous_run_is_one_update() -> None:
    shown = dataclasses.replace(
        RESULT,
        strategy="parameter-server-async",
        options={"servers": 1},
        steps=80,
        step_seconds=interval_of([0.01] * 72),
        samples_per_second=500.0,
        staleness=Staleness(1.0, 3, {1: 80}),
        updates=Updates(80, 80, {0: 40, 1: 40}, 80, batches=20, versions=80),
    )
    text = " ".join(str(shown).split())
    for expected in (
        "80 updates for 20 batches, 2 full epochs; the first updates of each worker, 8 in all, are warm-up",
        "one update by one worker: 10 ms [95% interval 10 ms to 10 ms, 72 timed] 500 samples/s over all workers",
        "2.0 KiB planned per update over all devices, not traced; the busiest server or device sends plus receives",
    ):
        assert expected in text
    assert "steps" not in text
    document = shown.to_json()
    assert (document["steps"], document["updates"]["batches"]) == (80, 20)


def test_staleness_is_counted_by_every_server() -> None:
    shown = dataclasses.replace(
        RESULT,
        options={"servers": 2},
        staleness=Staleness(0.75, 2, {0: 10, 1: 5, 2: 5}),
        updates=Updates(10, 10, {0: 5, 1: 5}, 10, batches=5, versions=10),
    )
    expected = "0.75 updates on average, 2 at most (0: 10, 1: 5, 2: 5); each of 2 servers counts its part of an update"
    assert expected in " ".join(str(shown).split())


def test_hosts_and_traced_bytes_are_shown() -> None:
    shown = dataclasses.replace(RESULT, hosts=2, link="1gbit", bytes_per_step=BytesPerStep(2048, 2050, 2048))
    assert "on 2 hosts connected at 1gbit" in str(shown)
    assert "2.0 KiB traced" in str(shown)


def test_copies_through_host_memory_are_shown_as_copies() -> None:
    copied = BytesPerStep(3072, 3070, 3070, "counted copies")
    shown = dataclasses.replace(RESULT, bytes_per_step=copied)
    expected = "copied 3.0 KiB planned per step between host memory and all devices, 3.0 KiB counted"
    assert expected in " ".join(str(shown).split())
    assert shown.to_json()["bytes_per_step"] == {
        "planned": 3072,
        "traced": 3070,
        "busiest": 3070,
        "traced_by": "counted copies",
    }


def test_html_for_notebooks() -> None:
    html = RESULT._repr_html_()
    assert html.startswith("<pre>")
    assert "21 global, at most 11 per device" in html
    assert "<span style=" in html


def test_a_run_without_times_prints_and_is_valid_json() -> None:
    empty = dataclasses.replace(RESULT, step_seconds=interval_of([]), loss=math.nan, phases={}, epoch_seconds=[])
    document = json.loads(json.dumps(empty.to_json(), allow_nan=False))
    assert document["loss"] is None
    assert document["step_seconds"] == {"median": None, "low": None, "high": None, "n": 0}
    assert "0 timed" in str(empty)


def test_a_long_path_is_not_truncated() -> None:
    path = Path("/a/very/long/path") / ("x" * 150)
    assert str(path) in "".join(str(dataclasses.replace(RESULT, checkpoint=path)).split())
