"""The table of advice."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

import pytest

from scalewise.advice.advise import advise
from scalewise.advice.one_device import published_profile
from scalewise.advice.result import does_not_fit, folded, table_of
from scalewise.advice.rows import Question, dollars, interval_text, rows_of, short_seconds
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.predictor import Predictor
from scalewise.strategies.registry import strategy_of


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mirrored", ["mirrored"]),
        ("parameter-server", ["parameter-", "server"]),
        ("parameter-server-async", ["parameter-", "server-async"]),
        ("data-parallel:engine=threads", ["data-parallel", ":engine=threads"]),
    ],
)
def test_long_strategy_names_break_between_words(name: str, lines: list[str]) -> None:
    assert folded(name) == lines


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "-"),
        (0.0234, "$0.023"),
        (1e-5, "<$0.001"),
        (0.234, "$0.23"),
        (99.4, "$99.40"),
        (345.0, "$345"),
        (12_345.0, "$12.3k"),
        (4_560_000.0, "$4.56M"),
    ],
)
def test_costs_have_at_most_seven_characters(cost: float | None, text: str) -> None:
    assert dollars(cost) == text


def test_long_times_have_one_unit() -> None:
    assert [short_seconds(seconds) for seconds in (4.31e-3, 125.0, 86_400.0)] == ["4.31 ms", "2.1 min", "24 h"]


def test_rows_that_do_not_fit_show_memory_instead_of_time_cost_and_speedup() -> None:
    cluster = cluster_of("8x-k80")
    profile = published_profile("VGG16", cluster.devices[0], (0.3, 32))
    rows, _ = rows_of(Predictor(profile, cluster), Question([strategy_of("mirrored")], [1, 2, 8], [32, 256]))
    priced = [row for row in rows if row.prediction.batch == 256]
    assert [row.fits for row in priced] == [False, False, True]
    for row in rows:
        document, prediction = row.to_json(), row.prediction
        nulls = {key for key, value in document.items() if value is None}
        assert document.keys() == rows[0].to_json().keys()
        assert document["memory_bytes"] == prediction.memory_bytes
        assert document["fits"] is row.fits is (prediction.memory_bytes <= document["device_memory_bytes"])
        times = {"step_seconds", "epoch_seconds", "phases", "cost_per_epoch", "cost_per_1000_steps"}
        assert (times <= nulls) is not row.fits
        assert (document["speedup"] is None) is (prediction.batch == 256)
    lines = table_of(priced, priced[-1], priced=True).plain.splitlines()
    assert lines[2].endswith("256 does not fit: needs 22.7 GB of 12 GB")
    assert "does not fit" not in lines[-1]
    assert [("$" in line, "ms" in line or " s " in line) for line in lines[2:]] == [(False, False)] * 2 + [(True, True)]
    assert len({line.index("does") for line in lines if "does" in line}) == 1


def test_weak_scaling_is_none_if_the_larger_batch_does_not_fit() -> None:
    cluster = cluster_of("4x-gtx-1080-ti")
    profile = published_profile("VGG16", cluster.devices[0], (0.1, 32))
    rows, _ = rows_of(Predictor(profile, cluster), Question([strategy_of("parameter-server")], [4], [64]))
    room = rows[1].prediction.memory_bytes / 1e9 + 0.5
    device = replace(cluster.devices[0], memory_GB=max(room, rows[0].prediction.memory_bytes / 1e9 + 0.1))
    small = replace(cluster, devices=(device,))
    alone, several = rows_of(Predictor(profile, small), Question([strategy_of("data-parallel")], [4], [64]))[0]
    assert (alone.fits, several.fits, several.speedup is None) == (True, True, False)
    assert several.speedup_per_device_batch is None


@pytest.mark.parametrize(("needed", "room", "text"), [(13.4e9, 11e9, "13.4 GB of 11 GB"), (11.04e9, 11e9, "11.04 GB")])
def test_needed_and_available_memory_are_shown_with_different_digits(needed: float, room: float, text: str) -> None:
    cluster = cluster_of("4x-gtx-1080-ti")
    profile = published_profile("VGG16", cluster.devices[0], (0.1, 32))
    [row], _ = rows_of(Predictor(profile, cluster), Question([], [1], [32]))
    row = replace(row, prediction=replace(row.prediction, memory_bytes=int(needed)), device_memory_bytes=room)
    assert text in does_not_fit(row)


@pytest.mark.parametrize("arguments", [{"batch": [100]}, {"batch_per_device": 50}])
def test_the_legend_has_at_most_three_lines(arguments: dict[str, Any]) -> None:
    advice = advise("conv", cluster="4x-gtx-1080-ti", **arguments)
    assert len(textwrap.wrap(advice._legend(), 80)) <= 3


def test_headings_are_words() -> None:
    advice = advise("conv", cluster="4x-gtx-1080-ti", batch=[100])
    first, second = table_of(advice.rows, advice.verdict.best, priced=False).plain.splitlines()[:2]
    assert first.split() == ["batch/", "step", "90%", "epoch", "weak"]
    assert second.split() == [
        "strategy", "devices", "device", "time", "interval", "time", "speedup", "scaling", "bottleneck",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0102, 0.014, "10.2-14.0 ms"),
        (0.8, 1.1, "0.80-1.10 s"),
        (0.06, 0.115, "60-115 ms"),
        (2e-4, 9e-4, "200-900 µs"),
        (100, 150, "1.67-2.50 min"),
        (7000, 7200, "1.94-2.00 h"),
    ],
)
def test_intervals_are_in_the_unit_of_their_upper_bound(low: float, high: float, text: str) -> None:
    assert interval_text(low, high) == text
