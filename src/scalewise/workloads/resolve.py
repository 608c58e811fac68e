"""What the user wrote as a Workload: a built-in name, 'file.py:function', 'package.module:function', 'hf:NAME'."""

from __future__ import annotations

import re
from importlib import import_module

from scalewise.errors import UserError
from scalewise.spec import Spec, parse_spec, unknown
from scalewise.workloads.catalogue import CATALOGUE, Entry, OptionValue
from scalewise.workloads.user import is_user_code, user_workload
from scalewise.workloads.workload import Workload
from scalewise.workloads.zoo import zoo_workload


def resolve(text: str, input_shape: str | None = None, classes: int | None = None) -> Workload:
    """The workload of that name; `input_shape` ('3x224x224') and `classes` describe a user's nn.Module."""
    name, colon, _ = text.partition(":")
    if name not in CATALOGUE and name != "hf" and is_user_code(text):
        return user_workload(text, _shape(input_shape), classes)
    if input_shape is not None or classes is not None:
        raise UserError(f"--input and --classes describe an nn.Module of yours; '{text}' knows what goes in and out")
    spec = parse_spec(text)
    if spec.name == "hf":
        return zoo_workload(text, spec.options)
    if spec.name not in CATALOGUE:
        valid = [*CATALOGUE, "hf:NAME", "path/to/file.py:function", "package.module:function"]
        raise unknown("workload", text if colon else spec.name, valid)
    entry = CATALOGUE[spec.name]
    workload: Workload = import_module(entry.module).build(str(spec), **read_options(spec, entry))
    return workload


def read_options(spec: Spec, entry: Entry) -> dict[str, OptionValue]:
    """Every option of the workload: its default, what a preset says, or what was written, each as its type."""
    values = {option: default for option, (default, _) in entry.options.items()}
    for word in spec.options:
        if word in entry.presets and spec.options[word] == "true":
            values.update(entry.presets[word])
    for option, text in spec.options.items():
        if option in entry.options:
            values[option] = _read(spec, option, text, entry.options[option][0])
        elif option not in entry.presets or text != "true":
            if not entry.options:
                raise UserError(f"'{spec.name}' has no options; '{option}' was given")
            raise unknown(f"option of '{spec.name}'", option, [*entry.options, *entry.presets])
    return values


def _read(spec: Spec, option: str, text: str, default: OptionValue) -> OptionValue:
    if isinstance(default, str):
        return text
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not number.is_integer():
        raise UserError(f"option {option} of '{spec}' must be a whole number like {default}, not '{text}'")
    # Digits beyond what a float holds are kept when they were written out.
    return int(text) if text.lstrip("+-").isdigit() else int(number)


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise UserError(f"--input must be sizes like 3x224x224, without the batch, not '{text}'")
    return tuple(int(size) for size in text.split("x"))
