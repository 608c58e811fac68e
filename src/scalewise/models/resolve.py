"""Resolve the name of a workload, built-in or in user code, to a Workload."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import scalewise
from scalewise.core.errors import Location, UserError, UsersCodeFailed
from scalewise.core.specs import matching
from scalewise.data.dataset import load_generated, load_tokens
from scalewise.models.catalogue import (
    CATALOGUE,
    HOW_TO_NAME_CODE,
    PUBLISHED,
    add_to_path,
    built_in_spec,
    check_file,
    is_built_in,
    parse_shape,
    read_options,
)
from scalewise.models.example_inputs import example_workload
from scalewise.models.published_cnns import TORCHVISION
from scalewise.models.published_transformers import IMAGE, TEXT, TRANSFORMERS, Transformer, transformers_workload
from scalewise.models.transformer import next_token_accuracy, next_token_loss
from scalewise.models.workload import Workload, classification_accuracy, classification_loss, one_tensor

IMAGE_SHAPE = (3, 224, 224)
CLASSES = 1000


def published_workload(name: str) -> Workload:
    """Workload of a name in `models.catalogue.PUBLISHED`."""
    return _transformer(name) if name in TRANSFORMERS else _cnn(name)


def _cnn(name: str) -> Workload:
    return Workload(
        name=name,
        model=TORCHVISION[name],
        data=partial(load_generated, input_shape=IMAGE_SHAPE, classes=CLASSES),
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=IMAGE_SHAPE,
    )


def _transformer(name: str) -> Workload:
    """Predicts the next token, or for BERT every token."""
    size = TRANSFORMERS[name]
    return Workload(
        name=name,
        model=partial(Transformer, size),
        data=partial(
            load_tokens, context=size.sequence, vocabulary=size.vocabulary, shift=0 if size.style == "bert" else 1
        ),
        loss=next_token_loss,
        accuracy=next_token_accuracy,
        input_shape=(size.sequence,),
        input_dtype=torch.int64,
        optimizer="adamw",
        learning_rate=1e-4,
        stages=Transformer.stages,  # type: ignore[arg-type]
    )


Loss = Callable[[Tensor, Tensor], Tensor]


def user_workload(text: str, input_shape: tuple[int, ...] | None, classes: int | None) -> Workload:
    """Call the user's function; return its Workload, or train its nn.Module as a classifier on generated inputs."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"'{text}' names no function; {HOW_TO_NAME_CODE}")
    function = _given_classes(_function(_load(place), place, name), classes)
    result = _result_with_fake_tensors(function)
    if not _has_example(result):
        with _report_user_error(text):
            result = function()
    if _has_example(result):
        if input_shape is not None:
            raise UserError(f"'{text}' returns an example batch, which defines the input shape; leave out --input")
        _refuse_sparse(result[0], text)
        return example_workload(text, partial(_first_of, function), result[1])
    if isinstance(result, Workload):
        if input_shape is not None or classes is not None:
            raise UserError(
                f"'{text}' returns a Workload, which defines its own input shape and classes; "
                "leave out --input and --classes"
            )
        loss = partial(_loss_of_one_tensor, text, result.loss)
        return dataclasses.replace(result, name=text, model=partial(_build_model, text, result.model), loss=loss)
    if not isinstance(result, nn.Module):
        raise UserError(
            f"'{text}' returns {type(result).__name__}; it must return a scalewise.Workload, a torch.nn.Module, or "
            "(module, example_batch)"
        )
    if input_shape is None or classes is None:
        raise UserError(
            f"'{text}' returns an nn.Module; give its input shape and classes, as in --input 3x224x224 --classes 10"
        )
    _check_shapes(result, text, input_shape, classes)
    return _classifier(text, function, input_shape, classes)


def _result_with_fake_tensors(function: Callable[[], Any]) -> Any:
    """Call the user's function so that large models take no memory; None if it needs real numbers."""
    try:
        with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True):
            return function()
    except (Exception, SystemExit):  # an error of the function's own is raised again by the real call
        return None


def _has_example(result: Any) -> bool:
    """Whether the user's function returned (module, example_batch)."""
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module)


def _first_of(function: Callable[[], Any]) -> nn.Module:
    module: nn.Module = function()[0]
    return module


def _given_classes(function: Callable[..., Any], classes: int | None) -> Callable[[], Any]:
    """Return the function with --classes as its argument, if it has a parameter `classes`."""
    try:
        takes_classes = "classes" in inspect.signature(function).parameters
    except ValueError:  # a built-in without signature
        takes_classes = False
    return partial(function, classes=classes) if takes_classes and classes is not None else function


def classifier(name: str, build: Callable[[], nn.Module], input_shape: str, classes: int | None) -> Workload:
    """Return a workload that trains a model as a classifier; without `classes` the size of its output is taken."""
    shape = parse_shape(input_shape)
    assert shape is not None
    outputs = _check_shapes(build(), name, shape, classes)
    return _classifier(name, build, shape, outputs)


def _classifier(name: str, build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int) -> Workload:
    return Workload(
        name=name,
        model=partial(_build_model, name, build),
        data=partial(load_generated, input_shape=input_shape, classes=classes),
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=input_shape,
    )


def _loss_of_one_tensor(text: str, loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    return loss(one_tensor(text, outputs), targets)


def _check_shapes(model: nn.Module, text: str, input_shape: tuple[int, ...], classes: int | None) -> int:
    """Run one sample, so that a wrong --input or --classes is reported once; return the values per sample."""
    _refuse_sparse(model, text)
    shape = "x".join(map(str, input_shape))
    with _report_user_error(f"{text} with --input {shape}"), torch.no_grad():
        outputs = one_tensor(text, model.eval()(torch.zeros(1, *input_shape)))
    values = outputs.flatten(1).shape[1]
    if classes not in (None, values):
        shape = "x".join(map(str, outputs.shape[1:]))
        raise UserError(f"'{text}' returns {shape} values per sample, but --classes {classes} needs {classes}")
    return values


def _build_model(text: str, function: Callable[[], nn.Module]) -> nn.Module:
    with _report_user_error(text):
        model = function()
    _refuse_sparse(model, text)
    return model


def _refuse_sparse(model: nn.Module, text: str) -> None:
    """Raise UserError for sparse gradients: fused optimizers, DDP buckets and gloo need dense ones."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            layer = path or type(module).__name__
            raise UserError(
                f"'{text}': the gradients of '{layer}' are sparse, which is not supported; create it with sparse=False"
            )


def _load(place: str) -> ModuleType:
    if not (place.endswith(".py") or "/" in place):
        # A console script does not import from the current folder, unlike `python -m`.
        add_to_path(Path.cwd())
        with _report_user_error(place):
            return importlib.import_module(place)
    path = Path(place)
    check_file(place)
    # Allow imports of neighbouring files, as if Python ran the file.
    add_to_path(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"'{place}' is not a Python file; {HOW_TO_NAME_CODE}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look up classes by module name. A loaded library of the same name is not replaced.
    sys.modules.setdefault(path.stem, module)
    try:
        with _report_user_error(place):
            spec.loader.exec_module(module)
    except UserError:
        if sys.modules[path.stem] is module:
            del sys.modules[path.stem]
        raise
    return module


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    members = vars(module).items()
    defined = [key for key, value in members if isinstance(value, FunctionType) and value.__module__ == module.__name__]
    listed = f"it defines {', '.join(defined)}" if defined else "it defines no functions"
    raise UserError(f"no function '{name}' in {place}; {listed}")


@contextmanager
def _report_user_error(source: str) -> Iterator[None]:
    """Convert errors of the user's code to UsersCodeFailed with the user's own line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        text = f"{type(error).__name__}: {message}" if message else type(error).__name__
        if isinstance(error, SyntaxError):
            location = Location(error.filename or source, error.lineno or 0)
            raise UsersCodeFailed(f"{type(error).__name__}: {error.msg}", location) from error
        line = users_line(error)
        raise UsersCodeFailed(text if line else f"'{source}': {text}", line) from error


def users_line(error: BaseException) -> Location | None:
    """Return the innermost line of the traceback that is in neither Scalewise nor a library."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_user_file(frame.filename):
            return Location(frame.filename, frame.lineno or 0, frame.line or "")
    return None


def _is_user_file(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(
        path.is_relative_to(Path(inspect.getfile(package)).parent) for package in (scalewise, torch, inspect)
    )


def resolve(text: str, input_shape: str | None = None, classes: int | None = None) -> Workload:
    """Return the workload of that name; `input_shape` ('3x224x224') and `classes` describe a user's nn.Module."""
    if not is_built_in(text):
        return user_workload(text, parse_shape(input_shape), classes)
    spec = built_in_spec(text, input_shape, classes)
    if spec.name in PUBLISHED:
        return published_workload(spec.name)
    if spec.name.lower() == "hf":
        return _hf_workload(text, spec.options)
    entry = CATALOGUE[spec.name]
    workload: Workload = import_module(entry.module).build(str(spec), **read_options(spec, entry))
    return workload


def _hf_workload(text: str, options: Mapping[str, str]) -> Workload:
    """Workload of a known model of the transformers library, or of one of its configurations."""
    words = [word for word, value in options.items() if value == "true"]
    is_known = len(words) != 1 or matching(words[0].rpartition("/")[2], [*TEXT, *IMAGE])
    if is_known or importlib.util.find_spec("transformers") is None:
        return transformers_workload(text, options)
    from scalewise.models.hf_configurations import configured_workload  # imports transformers

    return configured_workload(text, words[0], {name: value for name, value in options.items() if name != words[0]})
