"""Help, lists and refusals answer at once: no torch, and less than half a second of CPU time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.command import command

QUICK = {
    "--help": 0,
    "--version": 0,
    "list strategies": 0,
    "list workloads --json": 0,
    "describe --help": 0,
    "train --help": 0,
    "measure --help": 0,
    "train linear --strategy singel": 2,
    "measure linear --strategy singel --out sweep": 2,
    "train linear --device-kind gpu": 2,
}
HEAVY = ("torch", "numpy", "matplotlib", "psutil")


@pytest.mark.parametrize("line", QUICK)
def test_no_torch_is_imported(line: str) -> None:
    imported = [sys.executable, "-X", "importtime", *command(*line.split())[1:]]
    said = subprocess.run(imported, capture_output=True, text=True, check=False)
    assert said.returncode == QUICK[line]
    modules = {row.rpartition("|")[2].strip() for row in said.stderr.splitlines() if row.startswith("import time:")}
    assert "scalewise.cli.app" in modules
    assert not modules & set(HEAVY)


LIBRARIES = [sys.executable, "-c", "import pydantic, rich.console, typer"]


def _cpu_seconds(arguments: list[str]) -> float:
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("line", ["--help", "list strategies", "describe --help"])
def test_half_a_second_of_cpu_time(line: str) -> None:
    """Or, where the machine is slow just now, twice what the libraries of any such command take."""
    whole = command(*line.split())
    assert any(_cpu_seconds(whole) < max(0.5, 2 * _cpu_seconds(LIBRARIES)) for _ in range(8))
