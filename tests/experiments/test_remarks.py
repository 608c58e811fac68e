"""Circumstances are remarked on where they matter."""

from __future__ import annotations

import pytest

from scalewise.experiments import remarks
from scalewise.experiments.remarks import load_remarks, not_begun_remarks, roughness
from tests.findings.test_series import measured


def test_other_load_is_remarked_on() -> None:
    assert load_remarks(0.2, 2) == load_remarks(1.7, 64) == []
    assert "other programs used 1.7 of 2 cores" in load_remarks(1.7, 2)[0]


def test_only_our_own_cores_count_and_only_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.getloadavg", lambda: (9.0, 9.0, 9.0))  # an installation that is over
    monkeypatch.setattr("psutil.cpu_percent", lambda _seconds, percpu: [100.0, 10.0, 100.0, 40.0] if percpu else 62.5)
    monkeypatch.setattr(remarks, "allowed_cores", lambda: {1, 3})
    assert remarks.cores_in_use() == pytest.approx(0.5)


def test_cells_that_were_not_begun_are_counted() -> None:
    assert not_begun_remarks(0) == []
    assert not_begun_remarks(1)[0].startswith("1 cell was not begun")
    assert not_begun_remarks(3)[0].startswith("3 cells were not begun")


def test_a_verdict_on_a_quiet_machine_with_all_cells_is_not_called_rough() -> None:
    assert roughness(0.2, 2, [measured("single", 1, 10), measured("mirrored", 2, 10)]) == ""


def test_a_verdict_says_why_it_is_rough() -> None:
    cells = [
        measured("single", 1, 10, flags=["interval-not-reached"]),
        measured("mirrored", 2, 10, flags=["interval-not-reached", "drift"]),
        measured("mirrored", 2, 20),
        measured("mirrored", 2, 50, status="oom", reason="rank 1: out of memory", step_seconds=None),
    ]
    assert roughness(2.14, 2, cells, not_begun=2) == (
        "; rough, because other programs used 2.1 of 2 cores, 3 of 6 cells have no time, 2 of 3 cells did not "
        "reach their interval in the time given and the machine's speed moved during 1 of 3 cells"
    )
    assert roughness(0.0, 2, cells[2:3], not_begun=1) == "; rough, because 1 of 2 cells have no time"
