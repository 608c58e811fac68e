"""Workloads from the user's own code; what goes wrong there is told with the user's file and line."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import scalewise
from scalewise.data.generated import load_generated
from scalewise.errors import UserError, UsersCodeFailed
from scalewise.workloads.classification import classification_accuracy, classification_loss
from scalewise.workloads.outputs import one_tensor
from scalewise.workloads.workload import Workload

Loss = Callable[[Tensor, Tensor], Tensor]
EXPLAINED = "write path/to/file.py:function or package.module:function"


def is_user_code(text: str) -> bool:
    """'file.py', 'file.py:function', 'package.module', 'package.module:function', or 'module:function' that exists."""
    place, _, function = text.rpartition(":")
    place = place or function
    if place.endswith(".py") or "/" in place:
        return True
    if not re.fullmatch(r"\w+(\.\w+)*", place):
        return False
    return "." in place or (place != text and function.isidentifier() and _on_path(place))


def user_workload(text: str, input_shape: tuple[int, ...] | None, classes: int | None) -> Workload:
    """Calls the function: a Workload is taken as it is, an nn.Module becomes a classifier of generated inputs."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"'{text}' names no function; {EXPLAINED}")
    function = _function(_load(place), place, name)
    with _told(text):
        made = function()
    if isinstance(made, Workload):
        if input_shape is not None or classes is not None:
            raise UserError(
                f"'{text}' returns a Workload, which says itself what goes in; leave out --input and --classes"
            )
        loss = partial(_loss_of_one_tensor, text, made.loss)
        return dataclasses.replace(made, name=text, model=partial(_make, text, made.model), loss=loss)
    if not isinstance(made, nn.Module):
        raise UserError(
            f"'{text}' returns {type(made).__name__}; a scalewise.Workload or a torch.nn.Module is expected"
        )
    if input_shape is None or classes is None:
        raise UserError(
            f"'{text}' returns an nn.Module: say what goes in and out, as in --input 3x224x224 --classes 10"
        )
    _check(made, text, input_shape, classes)
    return Workload(
        name=text,
        model=partial(_make, text, function),
        data=partial(load_generated, input_shape=input_shape, classes=classes),
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=input_shape,
    )


def _loss_of_one_tensor(text: str, loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    return loss(one_tensor(text, outputs), targets)


def _check(model: nn.Module, text: str, input_shape: tuple[int, ...], classes: int) -> None:
    """One sample through the model, so that a wrong --input or --classes is answered here and not by every rank."""
    _refuse_sparse(model, text)
    shape = "x".join(map(str, input_shape))
    with _told(f"{text} with --input {shape}"), torch.no_grad():
        outputs = one_tensor(text, model.eval()(torch.zeros(1, *input_shape)))
    if outputs.flatten(1).shape[1] != classes:
        found = "x".join(map(str, outputs.shape[1:]))
        raise UserError(f"'{text}' gives {found} numbers per sample; --classes {classes} needs {classes}")


def _make(text: str, function: Callable[[], nn.Module]) -> nn.Module:
    with _told(text):
        model = function()
    _refuse_sparse(model, text)
    return model


def _refuse_sparse(model: nn.Module, text: str) -> None:
    """torch's fused optimizers, its buckets and gloo's messages want all of a gradient."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            layer = path or type(module).__name__
            raise UserError(f"'{text}': the gradients of '{layer}' are sparse; make it with sparse=False")


def _load(place: str) -> ModuleType:
    if not (place.endswith(".py") or "/" in place):
        # A console script does not look in the folder it is called from; `python -m` does.
        _look_in(Path.cwd())
        with _told(place):
            return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise UserError(f"no such file: {place}")
    # Its neighbours can be imported, as when Python runs the file.
    _look_in(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"'{place}' is not a Python file; {EXPLAINED}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look a class up by its module's name; a loaded library of that name stays what it is.
    sys.modules.setdefault(path.stem, module)
    try:
        with _told(place):
            spec.loader.exec_module(module)
    except UserError:
        if sys.modules[path.stem] is module:
            del sys.modules[path.stem]
        raise
    return module


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _on_path(module: str) -> bool:
    _look_in(Path.cwd())
    return importlib.util.find_spec(module) is not None


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    members = vars(module).items()
    defined = [key for key, value in members if isinstance(value, FunctionType) and value.__module__ == module.__name__]
    listed = f"it defines {', '.join(defined)}" if defined else "it defines no functions"
    raise UserError(f"no function '{name}' in {place}; {listed}")


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns whatever the user's code raises into one sentence with the user's own line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        text = f"{type(error).__name__}: {message}" if message else type(error).__name__
        if isinstance(error, SyntaxError):
            raise UsersCodeFailed(f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}") from error
        line = users_line(error)
        place = f"{line.filename}:{line.lineno}" if line else f"'{what}'"
        raise UsersCodeFailed(f"{place}: {text}") from error


def users_line(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost line of the user's own that led to it."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return lines[-1] if lines else None


def _is_users(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or "site-packages" in path.parts:
        return False
    return not any(
        path.is_relative_to(Path(inspect.getfile(package)).parent) for package in (scalewise, torch, inspect)
    )
