"""Clearing up after the block and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from scalewise.session.janitor import afterwards

_LAUNCHER = """
import sys
from scalewise.session.janitor import afterwards
with afterwards("touch always", if_killed="touch killed"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_the_script_runs_when_the_block_ends_and_not_before(tmp_path: Path) -> None:
    always, killed = tmp_path / "always", tmp_path / "killed"
    with afterwards(f"touch {always}", if_killed=f"touch {killed}"):
        assert not always.exists()
    assert always.exists()
    assert not killed.exists()


def test_both_scripts_run_when_the_process_is_killed(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    janitors = psutil.Process(launcher.pid).children()
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate(timeout=10)
    assert psutil.wait_procs(janitors, timeout=10)[1] == []
    assert {path.name for path in tmp_path.iterdir()} == {"always", "killed"}
