"""Run the command line in the test's own process or in another one."""

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
from tests.preloaded import PreloadedCommand

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Output:
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str

    def refused(self, code: int, *parts: str) -> None:
        """Assert the exit code, a single line on stderr that contains `parts`, no traceback and no output on stdout."""
        assert (self.code, self.stdout) == (code, ""), self
        assert self.stderr.startswith("scalewise: "), self.stderr
        assert self.stderr.count("\n") == 1, self.stderr
        assert "Traceback" not in self.stderr
        for part in parts:
            assert part in self.stderr


Run = Callable[..., Output]


def in_process(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: object) -> Output:
        monkeypatch.setattr(sys, "argv", ["scalewise", *map(str, arguments)])
        capfd.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as exit:
            code = exit.code
        assert isinstance(code, int)
        return Output(code, *capfd.readouterr())

    return run


def command(*arguments: object, module: str = "scalewise") -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def start(
    *arguments: object, module: str = "scalewise", env_more: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Start a command as a new Python process that can import `tests.tiny`."""
    options = _options(env_more, more)
    return subprocess.Popen(command(*arguments, module=module), text=True, **options)


def fork(
    *arguments: object, module: str = "scalewise", env_more: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Start a command as `start` does, but from a process that has imported torch: this saves seconds."""
    return PreloadedCommand(module, [str(argument) for argument in arguments], **_options(env_more, more))


def _options(env_more: Mapping[str, str] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search_path, **(env_more or {})}
    return {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment, **more}


def finish(process: subprocess.Popen[str], seconds: float = 300) -> Output:
    stdout, stderr = process.communicate(timeout=seconds)
    return Output(process.returncode, stdout or "", stderr or "")
