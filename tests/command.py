"""The command line as tests call it: in this process, or as a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scalewise.cli import main

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Said:
    """What a command left: its exit code and its two streams."""

    code: int
    stdout: str
    stderr: str

    def refused(self, code: int, *parts: str) -> None:
        """One clear sentence on stderr with these parts in it, no traceback, nothing on stdout."""
        assert (self.code, self.stdout) == (code, ""), self
        assert self.stderr.startswith("scalewise: "), self.stderr
        assert self.stderr.count("\n") == 1, self.stderr
        assert "Traceback" not in self.stderr
        for part in parts:
            assert part in self.stderr


Run = Callable[..., Said]


def in_process(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["scalewise", *map(str, arguments)])
        capfd.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as exit:
            code = exit.code
        assert isinstance(code, int)
        return Said(code, *capfd.readouterr())

    return run


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "scalewise", *map(str, arguments)]


def start(*arguments: object, env_more: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
    """A real process; its folder is importable, so that `tests.tiny` can be trained."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env_more or {})}
    return subprocess.Popen(command(*arguments), text=True, env=environment, **streams)


def finish(process: subprocess.Popen[str], seconds: float = 120) -> Said:
    stdout, stderr = process.communicate(timeout=seconds)
    return Said(process.returncode, stdout or "", stderr or "")
