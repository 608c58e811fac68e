"""Help, lists and refusals import no torch and take less than half a second of CPU time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.command import ROOT, command

QUICK = {
    "--help": 0,
    "--version": 0,
    "list strategies": 0,
    "list workloads --json": 0,
    "describe --help": 0,
    "clusters show 8x-a100-nvlink": 0,
    "train --help": 0,
    "measure --help": 0,
    "train linear --strategy singel": 2,
    "measure linear --strategy singel --out sweep": 2,
    "train linear --device-kind gpu": 2,
    "train linear --learning-rate inf": 2,
    "train linear --checkpoint README.md": 2,
}
HEAVY = ("torch", "numpy", "matplotlib", "psutil")


@pytest.mark.parametrize("line", QUICK)
def test_no_torch_is_imported(line: str) -> None:
    imported = [sys.executable, "-X", "importtime", *command(*line.split())[1:]]
    output = subprocess.run(imported, capture_output=True, text=True, check=False, cwd=ROOT)
    assert output.returncode == QUICK[line]
    modules = {row.rpartition("|")[2].strip() for row in output.stderr.splitlines() if row.startswith("import time:")}
    assert "scalewise.cli.app" in modules
    assert not modules & set(HEAVY)


def _cpu_seconds(line: str) -> float:
    process = subprocess.Popen(command(*line.split()), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.serial
@pytest.mark.parametrize("line", ["--help", "list strategies", "describe --help"])
def test_half_a_second_of_cpu_time(line: str) -> None:
    assert any(_cpu_seconds(line) < 0.5 for _ in range(20))  # the machine may be busy, the command may not
