"""Printed results of experiments."""

from __future__ import annotations

from rich.console import Console

from scalewise.reporting.finding import ExperimentResult


def test_long_names_wrap_in_a_narrow_terminal() -> None:
    columns = ["workload", "strategy", "devices", "fastest epoch", "at batch", "speed-up"]
    row = ["linear", "data-parallel:engine=threads", "2", "378 ms", "600", "0.11x to 0.54x"]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(ExperimentResult("report", [], columns, [row]))
    assert "…" not in capture.get()
    [_, first, second, *_] = capture.get().splitlines()
    assert first.split()[1] + second.strip() == "data-parallel:engine=threads"
