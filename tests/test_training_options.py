"""The command line, the Python functions and TrainingOptions agree on every option."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer.main

import scalewise
from scalewise.cli import inspect as profile_command
from scalewise.cli import measure as measure_command
from scalewise.cli import train as train_command
from scalewise.cli.app import app
from scalewise.core.training_options import HELP, DeviceKind, Settings, TrainingOptions, flag_of
from scalewise.launch.placement import DEVICE_KINDS

DEFAULTS = {option.name: option.default for option in fields(TrainingOptions)}
TYPES = get_type_hints(TrainingOptions)
AS_TEXT: dict[str, Any] = {"checkpoint_every": str | None, "slow": list[str] | None, "device_kind": DeviceKind}
"""Options whose type on the command line differs: text that is parsed, and one of several words."""
LISTS = {"strategy", "devices", "hosts", "link", "batch", "batch_per_device"}
"""Options of `measure` and `profile` that take several values."""
OTHER_IN_MEASURE = {"epochs", "resume"}
"""Options that have another meaning in `measure`."""


def parameter_of(name: str) -> str:
    """Return the name of the command's parameter: 'input_shape' -> 'input'."""
    return flag_of(name).removeprefix("--").replace("-", "_")


def python_type(hint: Any) -> Any:
    """Return the type in a Python signature: a path may also be text."""
    return Path | str | None if hint == Path | None else hint


IN_PYTHON: dict[str, Any] = {"input_shape": str | tuple[int, ...] | None}
"""Options that Python functions take in another form too: the shape (3, 224, 224) or '3x224x224'."""


def default_of(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_the_python_function_takes_every_option() -> None:
    hints = get_type_hints(scalewise.train, localns={"Mapping": Mapping})
    names = set(inspect.signature(scalewise.train).parameters) - {"workload", "on_report", "on_choosing"}
    assert names == set(DEFAULTS)
    for name, default in DEFAULTS.items():
        assert default_of(scalewise.train, name) == default, name
        assert hints[name] == IN_PYTHON.get(name, python_type(TYPES[name])), name


def test_the_command_takes_every_option() -> None:
    hints = get_type_hints(train_command.train)
    names = set(inspect.signature(train_command.train).parameters) - {"workload", "on", "json"}
    assert names == {parameter_of(name) for name in DEFAULTS}
    for name, default in DEFAULTS.items():
        assert default_of(train_command.train, parameter_of(name)) == default, name
        assert hints[parameter_of(name)] == AS_TEXT.get(name, TYPES[name]), name


def test_the_command_offers_every_device_kind() -> None:
    assert set(get_args(DeviceKind)) == set(DEVICE_KINDS)


@pytest.mark.parametrize("command", ["train", "measure", "profile"])
def test_flags_and_help_texts_come_from_the_options(command: str) -> None:
    commands: Any = typer.main.get_command(app)
    shown = {option.name: option for option in commands.commands[command].params}
    checked = 0
    for name, help in HELP.items():
        option = shown.get(parameter_of(name))
        if (
            option is None
            or (command == "measure" and name in OTHER_IN_MEASURE)
            or (command != "train" and name in LISTS)
        ):
            continue
        assert option.opts == [flag_of(name)]
        assert option.secondary_opts == []
        assert option.help == help.text
        checked += 1
    assert checked == len(HELP) if command == "train" else checked >= 8


@pytest.mark.parametrize(
    ("function", "command"),
    [(scalewise.measure, measure_command.measure), (scalewise.profile, profile_command.profile)],
)
def test_measure_and_profile_share_types_and_defaults(function: Any, command: Any) -> None:
    given, hints, shown = inspect.signature(function).parameters, get_type_hints(function), get_type_hints(command)
    shared = [name for name in DEFAULTS if name in given and name not in LISTS | OTHER_IN_MEASURE]
    assert len(shared) >= 8
    for name in shared:
        assert given[name].default == default_of(command, parameter_of(name)) == DEFAULTS[name], name
        assert hints[name] == IN_PYTHON.get(name, python_type(TYPES[name])), name
        assert shown[parameter_of(name)] == AS_TEXT.get(name, TYPES[name]), name


def test_settings_of_the_ranks_have_the_same_types_and_defaults() -> None:
    hints = get_type_hints(Settings)
    for option in fields(Settings):
        if option.name not in ("batch", "epochs", "traced"):  # resolved before ranks start
            assert option.default == DEFAULTS[option.name], option.name
            assert hints[option.name] == TYPES[option.name], option.name
