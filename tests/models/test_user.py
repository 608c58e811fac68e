"""Workloads from the user's own files; errors are reported with the user's own line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.resolve import resolve

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
    """Undo the imports of a test after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name


def test_a_workload_gets_the_name_that_was_given() -> None:
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


def test_every_call_creates_a_new_model() -> None:
    workload = resolve(write("small.py", MODEL) + ":small", "3x4", 5)
    assert workload.model() is not workload.model()


@pytest.mark.parametrize("text", ["package.models:small", "models_of_mine:small"])
def test_a_module_in_the_working_folder_is_found(text: str) -> None:
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


def test_sparse_gradients_are_refused_with_the_name_of_the_layer() -> None:
    sparse = MODEL.replace("nn.Linear(12, 5)", "nn.Embedding(12, 5, sparse=True)")
    Path("own.py").write_text(sparse)
    with pytest.raises(UserError, match=r"the gradients of '1' are sparse, .*create it with sparse=False"):
        resolve("own.py:small", "3x4", 5)
    Path("other.py").write_text(WORKLOAD.replace("torch.nn.Linear(2, 1)", "torch.nn.Embedding(2, 1, sparse=True)"))
    with pytest.raises(UserError, match="the gradients of 'Embedding' are sparse"):
        resolve("other.py:mine").model()


def test_a_corrected_file_is_loaded_again() -> None:
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
        (
            "small.py:small",
            None,
            None,
            r"returns an nn\.Module; give its input shape and classes, as in --input 3x224x224",
        ),
        ("small.py:small", "12", None, r"returns an nn\.Module; give its input shape and classes"),
        ("small.py:small", "3,4", 5, r"--input must be sizes like 3x224x224, without the batch, not '3,4'"),
        ("small.py:small", "0x4", 5, r"--input must be sizes"),
        ("small.py:small", "3x5", 5, r"with --input 3x5.*mat1 and mat2 shapes cannot be multiplied"),
        ("small.py:small", "3x4", 6, r"returns 5 values per sample, but --classes 6 needs 6"),
        ("number.py:number", None, None, r"returns int; it must return a scalewise\.Workload, a torch\.nn\.Module, or"),
        ("mine.py:mine", "2", 2, r"returns a Workload, which defines its own input shape"),
    ],
)
def test_missing_or_wrong_arguments_are_named(text: str, shape: str | None, classes: int | None, message: str) -> None:
    write("small.py", MODEL)
    write("mine.py", WORKLOAD)
    write("number.py", "def number():\n    return 3\n")
    with pytest.raises(UserError, match=message):
        resolve(text, shape, classes)


def test_a_function_with_a_parameter_classes_is_given_their_number() -> None:
    write("sized.py", "import torch\n\ndef sized(classes=7):\n    return torch.nn.Linear(4, classes)\n")
    workload = resolve("sized.py:sized", "4", 3)
    assert workload.model()(torch.zeros(1, 4)).shape == (1, 3)
    with pytest.raises(UserError, match="give its input shape and classes"):
        resolve("sized.py:sized", "4", None)
