"""Workloads from the user's own files; mistakes there are told with the user's line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.resolve import resolve

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
"""
WORKLOAD = """
import torch
from scalewise import Data, Workload

def mine():
    return Workload(
        "anything", lambda: torch.nn.Linear(2, 1), lambda request: Data("mine", (torch.zeros(4, 2), torch.zeros(4, 1))),
        torch.nn.functional.mse_loss, (2,),
    )
"""


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test imports is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name


def test_a_workload_is_taken_under_the_name_it_was_asked_for() -> None:
    workload = resolve(write("folder/mine.py", WORKLOAD) + ":mine")
    assert workload.name == "folder/mine.py:mine"
    assert workload.data(DataRequest()).source == "mine"


def test_a_module_becomes_a_classifier_of_generated_inputs() -> None:
    workload = resolve(write("small.py", MODEL) + ":small", "3x4", 5)
    data = workload.data(DataRequest(samples=10, seed=1))
    assert data.tensors is not None
    inputs, labels = data.tensors
    assert data.source == "generated inputs"
    assert workload.input_shape == (3, 4)
    assert inputs.shape == (10, 3, 4)
    assert labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert workload.loss(workload.model()(inputs), labels).isfinite()
    again = workload.data(DataRequest(samples=10, seed=1)).tensors
    assert again is not None
    assert torch.equal(inputs, again[0])
    with pytest.raises(UserError, match="takes generated inputs only"):
        workload.data(DataRequest(Path("x")))


def test_every_model_is_freshly_made() -> None:
    workload = resolve(write("small.py", MODEL) + ":small", "3x4", 5)
    assert workload.model() is not workload.model()


@pytest.mark.parametrize("text", ["package.models:small", "models_of_mine:small"])
def test_a_module_of_the_working_folder_is_found(text: str) -> None:
    write("package/models.py", MODEL)
    write("models_of_mine.py", MODEL)
    assert resolve(text, "12", 5).name == text


def test_neighbours_of_the_file_can_be_imported() -> None:
    write("folder/layers_beside.py", "from torch import nn\nlayer = nn.Linear(3, 2)\n")
    text = write("folder/uses.py", "from layers_beside import layer\ndef model():\n    return layer\n") + ":model"
    assert resolve(text, "3", 2).name == text


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("import torch\nimport no_such_thing\n", 2, "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def model():\n    return nn.Linear(3, 2)\n", 2, "NameError: name 'nn' is not defined"),
        ("def model(:\n    pass\n", 1, "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('no')\n", 2, "SystemExit: no"),
        (
            "import torch\n\ndef model():\n    return torch.nn.Linear(-1, 2)\n",
            4,
            "RuntimeError: Trying to create tensor",
        ),
        ("import torch\ndef model():\n    raise ValueError('two\\n lines')\n", 3, "ValueError: two lines"),
    ],
)
def test_an_error_shows_the_users_line(source: str, line: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(write("wrong.py", source) + ":model", "3", 2)
    assert f"wrong.py:{line}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_in_a_neighbour_shows_the_neighbours_line() -> None:
    write("broken_beside.py", "\n\n1 / 0\n")
    with pytest.raises(UserError, match=r"broken_beside\.py:3: ZeroDivisionError: division by zero"):
        resolve(write("uses.py", "import broken_beside\n") + ":model")


def test_sparse_gradients_are_refused_by_the_name_of_their_layer() -> None:
    sparse = MODEL.replace("nn.Linear(12, 5)", "nn.Embedding(12, 5, sparse=True)")
    Path("own.py").write_text(sparse)
    with pytest.raises(UserError, match=r"the gradients of '1' are sparse; make it with sparse=False"):
        resolve("own.py:small", "3x4", 5)
    Path("other.py").write_text(WORKLOAD.replace("torch.nn.Linear(2, 1)", "torch.nn.Embedding(2, 1, sparse=True)"))
    with pytest.raises(UserError, match="the gradients of 'Embedding' are sparse"):
        resolve("other.py:mine").model()


def test_a_file_may_be_corrected_and_tried_again() -> None:
    with pytest.raises(UserError, match=r"small\.py:1: NameError"):
        resolve(write("small.py", "nonsense\n") + ":small", "12", 5)
    assert resolve(write("small.py", MODEL) + ":small", "12", 5).input_shape == (12,)


@pytest.mark.parametrize(
    ("text", "shape", "classes", "message"),
    [
        ("gone.py:model", None, None, r"no such file: gone\.py"),
        ("small.py", None, None, r"'small\.py' names no function; write path/to/file\.py:function"),
        ("package.models", None, None, r"'package\.models' names no function"),
        ("no_package.models:x", None, None, r"'no_package\.models': ModuleNotFoundError: No module named 'no_package'"),
        ("small.py:smal", None, None, r"no function 'smal' in small\.py; it defines small"),
        ("small.py:small", None, None, r"returns an nn\.Module: say what goes in and out, as in --input 3x224x224"),
        ("small.py:small", "12", None, r"returns an nn\.Module: say what goes in and out"),
        ("small.py:small", "3,4", 5, r"--input must be sizes like 3x224x224, without the batch, not '3,4'"),
        ("small.py:small", "0x4", 5, r"--input must be sizes"),
        ("small.py:small", "3x5", 5, r"with --input 3x5.*mat1 and mat2 shapes cannot be multiplied"),
        ("small.py:small", "3x4", 6, r"gives 5 numbers per sample; --classes 6 needs 6"),
        ("number.py:number", None, None, r"returns int; a scalewise\.Workload or a torch\.nn\.Module is expected"),
        ("mine.py:mine", "2", 2, r"returns a Workload, which says itself what goes in"),
    ],
)
def test_what_is_missing_is_named(text: str, shape: str | None, classes: int | None, message: str) -> None:
    write("small.py", MODEL)
    write("mine.py", WORKLOAD)
    write("number.py", "def number():\n    return 3\n")
    with pytest.raises(UserError, match=message):
        resolve(text, shape, classes)
