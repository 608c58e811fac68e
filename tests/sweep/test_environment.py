"""Measurements may share a folder exactly if they are comparable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.core.errors import UserError
from scalewise.formats.store import Environment
from scalewise.reporting.series import place_key
from scalewise.sweep import environment
from scalewise.sweep.environment import check_same, load_remarks, not_begun_remarks, roughness
from tests.reporting.test_series import measured

BEFORE = Environment(
    hardware={"cpu": "Some CPU", "cores": 2, "memory_bytes": 1000},
    versions={"torch": "2.11.0", "system": "Linux 6.1"},
    data="recordings",
    samples_per_epoch=95,
    conditions={"load": "auto"},
)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"hardware": {**BEFORE.hardware, "memory_bytes": 1001}}, None),
        ({"hardware": {**BEFORE.hardware, "cores": 4}}, "different hardware: cores was 2 and is now 4"),
        (
            {"versions": {**BEFORE.versions, "torch": "2.13.0"}},
            "versions: torch was '2.11.0' and is now '2.13.0'",
        ),
        ({"versions": {**BEFORE.versions, "system": "Linux 6.2"}}, "system was 'Linux 6.1' and is now 'Linux 6.2'"),
        ({"data": "synthetic speech"}, "different data: data was 'recordings' and is now 'synthetic speech'"),
        ({"samples_per_epoch": 96}, "samples was 95 and is now 96"),
        ({"conditions": {"load": "stream"}}, "different conditions: load was 'auto' and is now 'stream'"),
    ],
)
def test_a_sweep_is_resumed_only_if_its_cells_are_comparable(changed: dict[str, Any], problem: str | None) -> None:
    now = BEFORE.model_copy(update=changed)
    environments = {BEFORE.id: BEFORE, now.id: now}
    one = measured("single", 1, 10, environment=BEFORE.id)
    different = place_key(one, environments) != place_key(replace(one, environment=now.id), environments)
    assert different == (problem is not None)
    if problem is None:
        check_same(Path("sweep"), BEFORE, now)
    else:
        with pytest.raises(UserError, match=rf"^sweep holds measurements with .*{problem}; name another folder"):
            check_same(Path("sweep"), BEFORE, now)


def test_data_that_was_never_loaded_is_not_compared() -> None:
    check_same(Path("sweep"), BEFORE.model_copy(update={"data": "", "samples_per_epoch": None}), BEFORE)


def test_other_load_gives_a_remark() -> None:
    assert load_remarks(0.2, 2) == load_remarks(1.7, 64) == []
    assert "other programs used 1.7 of 2 cores" in load_remarks(1.7, 2)[0]


def test_only_the_current_load_of_allowed_cores_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.getloadavg", lambda: (9.0, 9.0, 9.0))  # load that has ended
    monkeypatch.setattr("psutil.cpu_percent", lambda _seconds, percpu: [100.0, 10.0, 100.0, 40.0] if percpu else 62.5)
    monkeypatch.setattr(environment, "allowed_cores", lambda: {1, 3})
    assert environment.cores_in_use() == pytest.approx(0.5)


def test_cells_that_were_not_started_are_counted() -> None:
    assert not_begun_remarks(0) == []
    assert not_begun_remarks(1)[0].startswith("1 cell was not started")
    assert not_begun_remarks(3)[0].startswith("3 cells were not started")


def test_a_verdict_from_all_cells_on_an_idle_machine_is_not_approximate() -> None:
    assert roughness(0.2, 2, [measured("single", 1, 10), measured("mirrored", 2, 10)]) == ""


def test_a_verdict_gives_the_reasons_why_it_is_approximate() -> None:
    cells = [
        measured("single", 1, 10, flags=["interval-not-reached"]),
        measured("mirrored", 2, 10, flags=["interval-not-reached", "drift"]),
        measured("mirrored", 2, 20),
        measured("mirrored", 2, 50, status="oom", reason="rank 1: out of memory", step_seconds=None),
    ]
    assert roughness(2.14, 2, cells, not_begun=2) == (
        "; approximate, because other programs used 2.1 of 2 cores, 3 of 6 cells were not measured, the intervals of "
        "2 of 3 cells are wider than requested and the machine's speed changed during 1 of 3 cells"
    )
    assert roughness(0.0, 2, cells[2:3], not_begun=1) == "; approximate, because 1 of 2 cells were not measured"
