"""Tests of scripts with and without a `__main__` guard."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.launch.rank_process import script_needed_by

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
from scalewise.core.errors import UserError
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from tests.launch import tasks

def double(worker, value):
    return 2 * value

def main():
    with Session(Placement(1, "cpu")) as session:
        print(session.run(tasks.total, 1.0))
        try:
            print(session.run(double, 3))
        except UserError as error:
            print(error)
"""


def test_a_task_from_a_module_does_not_need_the_script() -> None:
    assert script_needed_by(pickle.dumps(script_needed_by)) == {}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Output lines of the script without a guard and with one, run at the same time."""
    folder = tmp_path_factory.mktemp("scripts")
    return [
        _output(process)
        for process in (
            _start(folder / "unguarded.py", SCRIPT + "main()"),
            _start(folder / "guarded.py", SCRIPT + "if __name__ == '__main__': main()"),
        )
    ]


@pytest.mark.slow
def test_a_script_without_a_guard_cannot_define_tasks(outputs: list[list[str]]) -> None:
    assert outputs[0] == [
        "[1.0]",
        "ranks run this script too, because the task is defined in it; "
        "put the code that starts the session under: if __name__ == '__main__':",
    ]


@pytest.mark.slow
def test_a_script_with_a_guard_can_define_tasks(outputs: list[list[str]]) -> None:
    assert outputs[1] == ["[1.0]", "[6]"]


def _start(file: Path, script: str) -> subprocess.Popen[str]:
    file.write_text(script)
    search_path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": search_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> list[str]:
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output.splitlines()
