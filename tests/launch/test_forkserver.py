"""Tests of clean-up scripts after the block and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.forkserver import run_afterwards, start_error

_LAUNCHER = """
import sys
from scalewise.launch.forkserver import run_afterwards
with run_afterwards("touch always", if_killed="touch killed"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("error", "folder", "kind", "message"),
    [
        (OSError(28, "No space left on device"), "/tmp/pymp-1", RunFailed, "/dev/shm or /tmp/pymp-1: No space left"),
        (OSError(28, "No space left on device", "/x/y"), "/tmp/pymp-1", RunFailed, "cannot start processes: /x/y: No"),
        (OSError("AF_UNIX path too long"), f"/tmp/{'y' * 100}", UserError, "too long for a socket (/tmp/yyy"),
    ],
)
def test_processes_that_cannot_start_name_the_folder(
    error: OSError, folder: str, kind: type[Exception], message: str
) -> None:
    problem = start_error(error, folder)
    assert type(problem) is kind
    assert message in str(problem)


def test_the_script_runs_when_the_block_ends_and_not_before(tmp_path: Path) -> None:
    always, killed = tmp_path / "always", tmp_path / "killed"
    with run_afterwards(f"touch {always}", if_killed=f"touch {killed}"):
        assert not always.exists()
    assert always.exists()
    assert not killed.exists()


def test_both_scripts_run_when_the_process_is_killed(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    cleanup_shells = psutil.Process(launcher.pid).children()
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate(timeout=60)
    assert psutil.wait_procs(cleanup_shells, timeout=60)[1] == []
    assert {path.name for path in tmp_path.iterdir()} == {"always", "killed"}
