"""The user's own models, trained from a file; mistakes are told with the user's line."""

from __future__ import annotations

import json
import sys
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
def imports(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What a test imports is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(folder)
    Path(FILE).write_text(MODEL)


SHAPE = ("--input", "3x4", "--classes", 5)


def test_a_module_is_trained_on_generated_inputs(scalewise: Run) -> None:
    said = scalewise("train", f"{FILE}:small", *SHAPE, "--samples", 40, "--batch", 10, "--epochs", 2, "--json")
    assert (said.code, said.stderr) == (0, "")
    document = json.loads(said.stdout)
    assert (document["workload"], document["parameters"]) == (f"{FILE}:small", 12 * 5 + 5)
    assert (document["data"], document["steps"]) == ("generated inputs", 8)


def test_a_module_is_described(scalewise: Run) -> None:
    document = json.loads(scalewise("describe", f"{FILE}:small", *SHAPE, "--json").stdout)
    assert (document["parameters"], document["input_bytes"]) == (65, 48)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["train", f"{FILE}:small"], "say what goes in and out, as in --input 3x224x224 --classes 10"),
        (
            ["train", f"{FILE}:small", "--input", "3x4", "--classes", 6],
            "gives 5 numbers per sample; --classes 6 needs 6",
        ),
        (["train", f"{FILE}:small", "--input", "7", "--classes", 5], "RuntimeError"),
        (["train", f"{FILE}:smal", *SHAPE], f"no function 'smal' in {FILE}; it defines small, broken, text, impatient"),
        (["train", f"{FILE}:broken", *SHAPE], f"{FILE}:7: TypeError"),
        (["train", f"{FILE}:text", *SHAPE], "returns str; a scalewise.Workload or a torch.nn.Module is expected"),
        (["train", "linear", *SHAPE], "--input and --classes describe an nn.Module of yours"),
    ],
)
def test_mistakes_are_told(line: list[object], sentence: str, scalewise: Run) -> None:
    scalewise(*line).refused(2, sentence)


def test_ctrl_c_before_the_first_step(scalewise: Run) -> None:
    scalewise("train", f"{FILE}:impatient", *SHAPE).refused(1, "interrupted")
