"""Types of the arguments of the Python functions, and the messages for other types.

The command line converts texts to numbers and refuses what is none. `checked` gives the Python functions the same
messages: it compares every argument with the annotation of its parameter before the function runs.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, ParamSpec, TypeVar, get_args, overload

from scalewise.core import training_options
from scalewise.core.errors import UserError
from scalewise.core.training_options import HELP, flag_of

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "Protocol": "a text",
    "bool": "True or False",
    "Path": "a path",
    "Sequence[str]": "a list of texts",
    "tuple[int, ...]": "sizes like (3, 224, 224)",
    "Mapping[int, float]": "a dictionary from ranks to shares, as in {1: 0.5}",
    "nn.Module": "a torch.nn.Module",
    "Workload": "a scalewise.Workload",
    "Profile": "a profile",
    "Cluster": "a cluster",
}
"""What to call a value of each type in a message."""
LITERALS: dict[str, tuple[str, ...]] = {
    name: get_args(getattr(training_options, name))
    for name in (
        "Precision",
        "GivenPrecision",
        "Execution",
        "CompileMode",
        "MemoryFormat",
        "Convolutions",
        "CheckpointEvery",
    )
}
"""Types of which only certain texts are values."""
OWN_MESSAGE = ("workload", "workloads")
"""Parameters that the functions check themselves."""


def checked(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function of the Python API: raise UserError for arguments of a wrong type.

    Whole numbers of numpy become int, and iterables become lists.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in OWN_MESSAGE:
                continue
            bound.arguments[name] = converted(name, value, str(parameter.annotation))
        return function(*bound.args, **bound.kwargs)

    return call


def converted(name: str, value: object, annotation: str) -> Any:
    """Return the value of a parameter as one of the types of its annotation, such as 'int | Sequence[int] | None'."""
    types = re.split(r" \| (?![^\[]*\])", annotation)
    if annotation in LITERALS:
        if value in LITERALS[annotation]:
            return value
        valid = ", ".join(f"'{text}'" for text in LITERALS[annotation])
        raise UserError(f"invalid value for '{flag_name(name)}': {shown(value)} is not one of {valid}")
    if "Sequence[int]" in types:
        return None if value is None and "None" in types else whole_numbers(flag_name(name), value)
    for kind in types:
        result = _as(kind, value)
        if result is not _MISMATCH:
            return result
    hidden = ("None", "str") if "Path" in types else ("None",)
    kinds = [KINDS.get(kind, kind.partition("[")[0]) for kind in types if kind not in hidden]
    raise UserError(f"invalid value for '{flag_name(name)}': it must be {' or '.join(kinds)}, not {shown(value)}")


_MISMATCH = object()


def _as(kind: str, value: object) -> object:
    """Return the value as a type, or _MISMATCH."""
    if kind == "None":
        return None if value is None else _MISMATCH
    if kind == "bool":
        return value if isinstance(value, bool) else _MISMATCH
    if kind == "int":
        return _whole_number(value)
    if kind == "float":
        return value if not isinstance(value, bool) and isinstance(value, Real) else _MISMATCH
    if kind in ("str", "Protocol"):
        return value if isinstance(value, str) else _MISMATCH
    if kind == "Path":
        return value if isinstance(value, str | os.PathLike) else _MISMATCH
    if kind == "tuple[int, ...]":
        return _items(value, _whole_number)
    if kind == "Sequence[str]":
        return _items(value, lambda item: item if isinstance(item, str) else _MISMATCH)
    if kind == "Mapping[int, float]":
        return value if isinstance(value, Mapping) else _MISMATCH
    if kind.startswith("Callable["):
        return value if callable(value) else _MISMATCH
    if kind.startswith("Sequence["):
        return value if isinstance(value, Iterable) and not isinstance(value, str) else _MISMATCH
    names = {parent.__name__ for parent in type(value).__mro__}
    return value if kind.rpartition(".")[2] in names else _MISMATCH


def _whole_number(value: object) -> object:
    if isinstance(value, bool):
        return _MISMATCH
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return _MISMATCH


def _items(value: object, convert: Callable[[object], object]) -> object:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        return _MISMATCH
    items = [convert(item) for item in value]
    return _MISMATCH if any(item is _MISMATCH for item in items) else items


def whole_numbers(flag: str, value: object, least: int = 1) -> list[int]:
    """Return one or several whole numbers as a list; a text has them separated by commas, as on the command line."""
    parts: object = value
    if isinstance(value, str):
        parts = [int(part) if part.strip().isdecimal() else part for part in value.split(",")]
    elif not isinstance(value, Iterable):
        parts = [value]
    numbers = _items(parts, _whole_number)
    if not isinstance(numbers, list) or any(number < least for number in numbers):
        example = "10,20,50" if flag.startswith("--batch") else {0: "0,1,2", 1: "1,2,4"}.get(least, "2,4")
        raise UserError(f"{flag} is {shown(value)}; it must be whole numbers from {least}, as in {flag} {example}")
    return numbers


@overload
def one_or_more(value: str | Sequence[str]) -> list[str]: ...
@overload
def one_or_more(value: int | Sequence[int]) -> list[int]: ...
@overload
def one_or_more(value: float | Sequence[float]) -> list[float]: ...
def one_or_more(value: Any) -> list[Any]:
    """Return a list of the values; a text or a number is a single value."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def flag_name(name: str) -> str:
    """Return a parameter's name on the command line: 'step_time' -> '--step-time'."""
    return flag_of(name) if name in HELP else f"--{name.replace('_', '-')}"


def shown(value: object) -> str:
    """Return a value for a message: its text if that is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a value of type {type(value).__name__}"
