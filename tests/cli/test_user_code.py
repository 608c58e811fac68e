"""Own models in files; mistakes are reported with the line of the user's code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Run

MODEL = """from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

def broken():
    return nn.Linear(3)

def text():
    return "a model"

def impatient():
    raise KeyboardInterrupt
"""
FILE = "my_models.py"


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Forget the user's module after a test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(folder)
    Path(FILE).write_text(MODEL)
    yield
    for name in [
        name for name, module in sys.modules.items() if str(folder) in (getattr(module, "__file__", "") or "")
    ]:
        del sys.modules[name]


SHAPE = ("--input", "3x4", "--classes", 5)


def test_a_module_is_trained_on_generated_inputs(scalewise: Run) -> None:
    output = scalewise("train", f"{FILE}:small", *SHAPE, "--samples", 40, "--batch", 10, "--epochs", 2, "--json")
    assert (output.code, output.stderr) == (0, "")
    document = json.loads(output.stdout)
    assert (document["workload"], document["parameters"]) == (f"{FILE}:small", 12 * 5 + 5)
    assert (document["data"], document["steps"]) == ("generated inputs", 8)


def test_a_module_is_described(scalewise: Run) -> None:
    document = json.loads(scalewise("describe", f"{FILE}:small", *SHAPE, "--json").stdout)
    assert (document["parameters"], document["input_bytes"]) == (65, 48)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["train", f"{FILE}:small"], "give its input shape and classes, as in --input 3x224x224 --classes 10"),
        (
            ["train", f"{FILE}:small", "--input", "3x4", "--classes", 6],
            "returns 5 values per sample, but --classes 6 needs 6",
        ),
        (["train", f"{FILE}:small", "--input", "7", "--classes", 5], "RuntimeError"),
        (["train", f"{FILE}:smal", *SHAPE], f"no function 'smal' in {FILE}; it defines small, broken, text, impatient"),
        (["train", f"{FILE}:broken", *SHAPE], f"{FILE}:7: TypeError"),
        (
            ["train", f"{FILE}:text", *SHAPE],
            "returns str; it must return a scalewise.Workload, a torch.nn.Module, or (module, example_batch)",
        ),
        (["train", "linear", *SHAPE], "--input and --classes are for your own nn.Module"),
    ],
)
def test_mistakes_in_user_code_are_reported(line: list[object], sentence: str, scalewise: Run) -> None:
    scalewise(*line).refused(2, sentence)


def test_ctrl_c_before_the_first_step(scalewise: Run) -> None:
    scalewise("train", f"{FILE}:impatient", *SHAPE).refused(1, "interrupted")
