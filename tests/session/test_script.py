"""Scripts with and without a guard."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from scalewise.session.script import needed_by

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
from scalewise.errors import UserError
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from tests.session import tasks

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
    assert needed_by(pickle.dumps(needed_by)) == {}


def test_without_a_guard_a_script_works_until_a_task_needs_it(tmp_path: Path) -> None:
    assert _output(tmp_path, SCRIPT + "main()") == [
        "[1.0]",
        "ranks run this script too, because the task needs something defined in it; "
        "put what starts the session under: if __name__ == '__main__':",
    ]


def test_with_a_guard_a_script_may_define_its_tasks(tmp_path: Path) -> None:
    assert _output(tmp_path, SCRIPT + "if __name__ == '__main__': main()") == ["[1.0]", "[6]"]


def _output(folder: Path, script: str) -> list[str]:
    file = folder / "script.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
