"""Install the wheel into a new environment and use it from an empty folder: `make test-wheel`.

python -m tests.packaging.bare_environment dist/scalewise-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
"""
SCRIPT = """
from importlib.resources import files
from importlib.util import find_spec

import scalewise

assert "site-packages" in scalewise.__file__, scalewise.__file__
assert files("scalewise").joinpath("py.typed").is_file()
assert find_spec("tests") is None
assert scalewise.train("model.py:build", input_shape="64", classes=4, batch=8, steps=3).steps == 3
"""


def run(folder: Path, *arguments: object) -> str:
    """Run a command in the folder, show it, and return its output."""
    print("$", Path(str(arguments[0])).name, *arguments[1:], flush=True)
    finished = subprocess.run([str(argument) for argument in arguments], cwd=folder, stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        sys.exit(f"exit code {finished.returncode}\n{finished.stdout}")
    return finished.stdout


def check(wheel: Path, folder: Path) -> None:
    venv.create(folder / "bare", with_pip=True)
    programs = folder / "bare" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(folder, *pip, "--constraint", CONSTRAINTS, wheel)
    empty = folder / "empty"
    empty.mkdir()
    (empty / "model.py").write_text(MODEL)
    scalewise, options = programs / "scalewise", ("model.py:build", "--input", "64", "--classes", 4)
    run(empty, scalewise, "--help")
    advice = run(empty, scalewise, "advise", "linear", "--cluster", "4x-gtx-1080-ti", "--json")
    assert json.loads(advice)["rows"], advice
    result = run(empty, scalewise, "train", *options, "--strategy", "mirrored", "--devices", 2, "--steps", 5, "--json")
    assert json.loads(result)["steps"] == 5, result
    grid = ("--devices", "1,2", "--batch", 8, "--strategy", "single", "--strategy", "mirrored", "--budget", 1)
    run(empty, scalewise, "measure", *options, *grid, "--out", "sweep")
    run(empty, scalewise, "report", "sweep")
    assert list((empty / "sweep").glob("*.svg")), sorted((empty / "sweep").iterdir())
    (empty / "script.py").write_text(SCRIPT)
    run(empty, programs / "python", "script.py")


def main() -> None:
    [wheel] = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check(Path(wheel).resolve(), Path(folder))
    print("The wheel works in a bare environment.")


if __name__ == "__main__":
    main()
