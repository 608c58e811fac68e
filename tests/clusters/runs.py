"""Runs that the tests of all schedulers share, and comparison of weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
SKYPILOT = str(ROOT / ".venv" / "skypilot" / "bin" / "python")
"""Python of the environment in which `make test-clusters` installs SkyPilot."""
WORKLOAD = "synthetic:parameters=200000"
TRAINING = ("--samples", "96", "--steps", "9", "--batch", "8", "--device-kind", "cpu", "--optimizer", "sgd")
STRATEGIES = {
    "mirrored": 4,
    "parameter-server:servers=2": 2,
    "pipeline": 4,
    "sharded": 4,
}
"""Strategy -> devices that it uses on four ranks."""


def scalewise(*words: str, folder: Path, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command on this machine only."""
    return subprocess.run(
        [sys.executable, "-m", "scalewise", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def train_here(folder: Path, *options: str) -> Path:
    """Train on this machine, by default on one device; return the checkpoint."""
    file = folder / "here.safetensors"
    result = scalewise("train", WORKLOAD, *(options or TRAINING), "--checkpoint", str(file), folder=folder)
    assert result.returncode == 0, result.stderr
    return file


def assert_same_weights(one: Path, other: Path, *, exactly: bool = False) -> None:
    """Compare parameters and buffers: up to rounding, as sums over ranks have another order, or bit by bit."""
    first, second = load_file(one), load_file(other)
    weights = [name for name in first if not name.startswith("optimizer")]
    assert weights
    assert first.keys() >= set(weights) <= second.keys()
    for name in weights:
        torch.testing.assert_close(first[name], second[name], rtol=0 if exactly else 1e-4, atol=0 if exactly else 1e-6)


def assert_on_both_hosts(result: dict[str, Any], devices: int) -> None:
    assert (result["devices"], result["hosts"]) == (devices, 2)
    assert result["bytes_per_step"]["planned"] == result["bytes_per_step"]["traced"] > 0


def cells(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def read_until(process: subprocess.Popen[str], pattern: str, seconds: float = 180) -> re.Match[str]:
    """Read messages of a command until one matches."""
    assert process.stderr is not None
    deadline = monotonic() + seconds
    lines: list[str] = []
    while monotonic() < deadline:
        line = process.stderr.readline()
        assert line, f"ended without '{pattern}': {lines}"
        lines.append(line)
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"no '{pattern}' within {seconds:g} s: {lines}")


def assert_nothing_left(folder: Path) -> None:
    """Wait until no process works in the folder; helpers of Python end a moment after their owners."""
    deadline = monotonic() + 20
    while left := processes_of(folder):
        assert monotonic() < deadline, left


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    lines: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return lines
