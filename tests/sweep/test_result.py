"""Table of a sweep and its speed-ups."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from scalewise.core.statistics import Interval
from scalewise.formats.store import INTERVAL_NOT_REACHED
from scalewise.sweep.result import MeasureResult, cell_line, speedup_of
from tests.formats.test_store import cell

TWO = cell(10, options={"bucket_MB": None, "compress": "none"}, epoch_seconds=2.0)
ALONE = replace(TWO, strategy="single", options={}, devices=1, batch_per_device=10, epoch_seconds=3.0)
MIRRORED_ALONE = replace(ALONE, strategy="mirrored", epoch_seconds=5.0)


def test_a_speedup_is_over_single_at_the_same_batch() -> None:
    assert speedup_of(TWO, [MIRRORED_ALONE, ALONE, TWO]) == 1.5
    assert speedup_of(TWO, [MIRRORED_ALONE, TWO]) == 2.5
    assert speedup_of(replace(TWO, hosts=2, link="1gbit"), [ALONE]) == 1.5


def test_the_baseline_of_a_server_strategy_has_the_same_link() -> None:
    """With one worker the strategy uses a link too."""
    slow, fast = (replace(MIRRORED_ALONE, link=link) for link in ("5mbit", "500mbit"))
    slow = replace(slow, epoch_seconds=100 * (fast.epoch_seconds or 0))
    two = replace(TWO, hosts=2, link="500mbit")
    assert speedup_of(two, [slow, fast, two]) == 2.5
    assert speedup_of(two, [slow, two]) is None


@pytest.mark.parametrize(
    "field", [{"batch": 20}, {"workload": "conv"}, {"execution": "graph"}, {"precision": "bf16"}, {"protocol": "paper"}]
)
def test_cells_with_different_settings_are_not_compared(field: dict[str, object]) -> None:
    assert speedup_of(TWO, [replace(ALONE, **field), TWO]) is None  # type: ignore[arg-type]


def test_one_device_and_unmeasured_cells_have_no_speedup() -> None:
    assert speedup_of(ALONE, [ALONE]) is None
    skipped = replace(TWO, status="skipped", reason="no room", epoch_seconds=None, step_seconds=None)
    assert speedup_of(skipped, [ALONE]) is None


def test_the_table_explains_flags_and_failures() -> None:
    wide = replace(TWO, flags=[INTERVAL_NOT_REACHED])
    failed = replace(TWO, batch=20, status="failed", reason="rank 1 was killed (signal 9)")
    failed = replace(failed, step_seconds=None, epoch_seconds=None, flags=[])
    text = str(MeasureResult(Path("sweep"), [wide, ALONE, failed], resumed=1, not_begun=4))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[3:6] == [
        "single 1 10 10 20 ms ± 5.0% 3 s drift",
        "mirrored 2 10 5 20 ms ± 5.0% 2 s 1.50x wide",
        "mirrored 2 20 5 failed",
    ]
    assert "wide: the interval is wider than requested" in text
    assert "failed: rank 1 was killed (signal 9)" in text
    assert "3 cells on cpu devices, in sweep, 1 of them from an earlier run; 4 were not started" in text


def test_options_distinguish_cells_of_one_strategy() -> None:
    halved = replace(TWO, options={"bucket_MB": None, "compress": "fp16"})
    assert cell_line(TWO).startswith("linear, mirrored on 2 cpu devices, batch 10: ")
    assert cell_line(halved).startswith("linear, mirrored:compress=fp16 on 2 cpu devices, batch 10: ")
    rows = str(MeasureResult(Path("sweep"), [TWO, halved])).splitlines()
    assert [row.split()[0] for row in rows[3:5]] == ["mirrored:compress=fp16", "mirrored"]


def test_a_step_timed_once_has_no_interval() -> None:
    once = replace(TWO, step_seconds=Interval(0.02, 0.02, 0.02, 1))
    assert "20 ms per step (timed once)" in cell_line(once)
    text = " ".join(str(MeasureResult(Path("sweep"), [once, ALONE])).split())
    assert "mirrored 2 10 5 20 ms once 2 s" in text


def test_numbers_keep_their_units_in_80_columns() -> None:
    long = replace(
        TWO, strategy="parameter-server-async", hosts=2, link="100mbit", flags=[INTERVAL_NOT_REACHED, "drift"]
    )
    console = Console(width=80, file=StringIO())
    console.print(MeasureResult(Path("sweep"), [long, replace(ALONE, epoch_seconds=312.0), TWO]))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    for entry in ("20 ms", "± 5.0%", "5 min 12 s", "156.00x", "100mbit", "speedup", "wide,"):
        assert entry in text
