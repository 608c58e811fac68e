"""Measurements are grouped into series, each with its baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.core.statistics import Interval
from scalewise.formats.store import Environment, Measurement
from scalewise.formats.train_result import BytesPerStep
from scalewise.reporting.finding import machine_text, place_text, when_text
from scalewise.reporting.series import series_of
from scalewise.reporting.speedups import speedups
from scalewise.sweep.result import speedup_of

HERE = Environment(hardware={"cpu": "Some CPU", "cores": 2}, samples_per_epoch=95)
KNOWN = {HERE.id: HERE}


def measured(strategy: str, devices: int, batch: int, seconds: float = 0.1, **more: Any) -> Measurement:
    fields: dict[str, Any] = {
        "device_kind": "cpu",
        "optimizer": "adam",
        "protocol": "quick",
        "execution": "eager",
        "step_seconds": Interval(seconds, seconds * 0.97, seconds * 1.05, 20),
        "environment": HERE.id,
        "started": "2026-11-15T10:00:00+00:00",
        **more,
    }
    return Measurement(
        workload="linear",
        strategy=strategy,
        devices=devices,
        batch=batch,
        batch_per_device=-(-batch // devices),
        **fields,
    )


def test_a_strategy_without_a_single_device_cell_is_compared_with_single() -> None:
    [series] = series_of([measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)], KNOWN)
    assert series.name == "linear, mirrored"
    [(one, two)] = series.pairs
    assert one.devices == 1
    assert one.epoch_seconds == pytest.approx(1.0)  # ten steps, the last one short
    assert two.epoch_seconds == pytest.approx(3.0)


def test_single_is_preferred_over_the_strategy_itself_on_one_device() -> None:
    cells = [measured("single", 1, 10, 0.1), measured("mirrored", 1, 10, 0.2), measured("mirrored", 2, 10, 0.3)]
    [series] = series_of(cells, KNOWN)
    assert [one.epoch_seconds for one, _ in series.pairs] == pytest.approx([1.0])
    assert len(series.cells) == 2


def test_without_single_a_strategy_on_one_device_is_its_own_baseline() -> None:
    cells = [measured("single", 1, 20, 0.1), measured("mirrored", 1, 10, 0.2), measured("mirrored", 2, 10, 0.3)]
    [series] = series_of(cells, KNOWN)
    assert [one.epoch_seconds for one, _ in series.pairs] == pytest.approx([2.0])


def test_hosts_are_compared_with_one_device_on_one_host() -> None:
    cells = [
        measured("mirrored", 1, 10, 0.1),
        measured("mirrored", 2, 10, 0.2),
        measured("mirrored", 2, 10, 0.8, hosts=2, link="1gbit"),
    ]
    one_host, two_hosts = series_of(cells, KNOWN)
    assert (one_host.strategy, two_hosts.strategy) == ("mirrored, hosts 1", "mirrored, hosts 2, 1gbit")
    assert [cell.epoch_seconds / one.epoch_seconds for one, cell in two_hosts.pairs] == pytest.approx([8.0])


def test_a_cuda_graph_cell_is_no_baseline_for_eager_cells() -> None:
    cells = [measured("single", 1, 10, execution="graph"), measured("mirrored", 2, 10)]
    assert [series.pairs for series in series_of(cells, KNOWN)] == [[], []]


def test_failed_cells_and_unknown_environments_are_left_out() -> None:
    failed = measured("single", 1, 20, status="oom", reason="out of memory", step_seconds=None)
    unknown = measured("single", 1, 30, environment="not in the file")
    [series] = series_of([measured("single", 1, 10), failed, unknown], KNOWN)
    assert series.batches == [10]


def test_the_uncertainty_of_a_cell_reaches_to_the_further_end_of_its_interval() -> None:
    [series] = series_of([measured("single", 1, 10)], KNOWN)
    assert series.cells[0].uncertainty == pytest.approx(0.05)


def test_a_cell_timed_once_is_uncertain() -> None:
    once = measured("mirrored", 2, 10, step_seconds=Interval(0.4, 0.4, 0.4, 1))
    [series] = series_of([measured("single", 1, 10, 0.1), once], KNOWN)
    [speedup] = speedups(series)
    assert (speedup.slower, speedup.faster, speedup.text) == (False, False, "0.25x (timed once)")


def test_measure_and_report_use_the_same_baseline() -> None:
    """`single` comes first, then the same strategy with the same options, over the same link."""
    far = {"hosts": 2, "link": "1gbit"}
    cells = [
        measured("parameter-server", 1, 10, 0.9, options={"servers": 2}, link="5mbit"),
        measured("parameter-server", 1, 10, 0.5, options={"servers": 1}),
        measured("parameter-server", 1, 10, 0.4, options={"servers": 2}, link="1gbit"),
        measured("parameter-server", 2, 10, 0.2, options={"servers": 2}, **far),
        measured("single", 1, 20, 0.8),
        measured("parameter-server", 1, 20, 0.1, options={"servers": 2}, link="1gbit"),
        measured("parameter-server", 2, 20, 0.2, options={"servers": 2}, **far),
    ]
    timed = [replace(cell, epoch_seconds=cell.step_seconds.median if cell.step_seconds else None) for cell in cells]
    [two_hosts] = [series for series in series_of(timed, KNOWN) if "hosts 2" in series.strategy]
    assert {speedup.batch: speedup.speedup for speedup in speedups(two_hosts)} == pytest.approx({10: 2.0, 20: 4.0})
    assert [speedup_of(cell, timed) for cell in timed if cell.hosts == 2] == pytest.approx([2.0, 4.0])


@pytest.mark.parametrize(
    ("strategy", "options", "per_batch"),
    [
        ("parameter-server", {}, 100),
        ("parameter-server-async", {"max_staleness": 0}, 100),
        ("parameter-server-async", {"max_staleness": None}, 300),
    ],
)
def test_an_asynchronous_batch_sends_the_bytes_of_all_updates(
    strategy: str, options: dict[str, Any], per_batch: int
) -> None:
    """An asynchronous step is one update by one of the workers."""
    [series] = series_of([measured(strategy, 3, 10, options=options, bytes_per_step=BytesPerStep(60, 60, 100))], KNOWN)
    assert series.cells[0].bytes_per_epoch == 10 * per_batch


def test_options_are_named_where_they_differ_from_the_defaults() -> None:
    default = measured("parameter-server", 2, 10, options={"servers": 1})
    sharded = measured("parameter-server", 2, 20, options={"servers": 2})
    assert [series.strategy for series in series_of([default, sharded], KNOWN)] == [
        "parameter-server",
        "parameter-server:servers=2",
    ]


@pytest.mark.parametrize(
    ("kind", "hardware", "text"),
    [
        ("cpu", {"cpu": "Some CPU", "cores": 2, "gpus": ["H200"]}, "2 cores of Some CPU"),
        ("cuda", {"gpus": ["H200", "H200"]}, "2x H200"),
        ("cuda", {"gpus": [{"name": "H200"}]}, "H200"),
        ("slice", {"gpus": ["H200"]}, "slices of H200"),
    ],
)
def test_machines_are_named_after_the_devices_used(kind: str, hardware: dict[str, Any], text: str) -> None:
    assert machine_text(Environment(hardware=hardware), kind) == text


def test_dates_are_written_as_a_day_or_a_range() -> None:
    assert when_text(["2026-11-15T10:00:00", "2026-11-15T11:00:00"]) == "2026-11-15"
    assert when_text(["2026-11-15T10:00:00", "2026-11-14T11:00:00"]) == "2026-11-14 to 2026-11-15"


def test_a_machine_that_was_restarted_is_still_the_same_machine() -> None:
    before = Environment(hardware={**HERE.hardware, "memory_bytes": 1000}, samples_per_epoch=95)
    after = Environment(hardware={**HERE.hardware, "memory_bytes": 1001}, samples_per_epoch=95)
    cells = [
        measured("single", 1, 10, environment=before.id),
        measured("mirrored", 2, 10, environment=after.id),
    ]
    [series] = series_of(cells, {before.id: before, after.id: after})
    assert len(series.pairs) == 1


def test_synthetic_data_is_named_with_the_machine() -> None:
    hardware = {"cpu": "AMD EPYC", "cores": 2}
    assert place_text(Environment(hardware=hardware, data="synthetic speech"), "cpu") == (
        "2 cores of AMD EPYC with synthetic speech"
    )
    assert place_text(Environment(hardware=hardware, data="2,000 recordings in a"), "cpu") == "2 cores of AMD EPYC"
