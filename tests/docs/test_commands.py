"""Commands in the pages can be parsed, and name workloads, strategies, clusters and targets of make that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from scalewise.cli.app import UsageError, app
from scalewise.core.errors import UserError
from scalewise.core.specs import parse_spec
from scalewise.hardware.catalogue import cluster_of
from scalewise.models.catalogue import CATALOGUE, PUBLISHED, named
from scalewise.published.tables import OUTLINES
from scalewise.strategies.registry import STRATEGIES, strategy_of
from tests.command import ROOT
from tests.docs.pages import Command, commands_of, current_pages, files_of, name_of, text_of

FOR_THE_READER = re.compile(
    r"[A-Z]+(\.\.\.)?|path/.*|package\.module:\w+|(model|train)\.py:\w+|my[-_].*|your-.*|file\.py.*"
)
"""Names that readers replace with their own: WORKLOAD, DIR, path/to/model.py:build."""
GROUP: Any = typer.main.get_command(app)
ALL = [command for page in current_pages() for command in commands_of(page)]


def check_command(arguments: tuple[str, ...], files: frozenset[str] = frozenset()) -> None:
    """Raise UsageError or UserError if a command does not exist, cannot be parsed or names something unknown."""
    context = GROUP.make_context("scalewise", list(arguments), resilient_parsing=True)
    name = arguments[0]
    if name.startswith("-"):
        return
    if name not in GROUP.commands:
        raise UserError(f"no command '{name}'")
    if len(arguments) == 1 or "--help" in arguments:
        return
    given = GROUP.commands[name].make_context(name, list(arguments[1:]), parent=context).params
    for strategy in _texts(given.get("strategy")):
        if strategy != "auto":
            strategy_of(strategy)
    for cluster in _texts(given.get("cluster")):
        if cluster != "here" and cluster not in files and not cluster.endswith(".toml"):
            cluster_of(cluster)
    for workload in [*_texts(given.get("workload")), *_texts(given.get("workloads"))]:
        _check_workload(workload, files)


def _check_workload(workload: str, files: frozenset[str]) -> None:
    if workload.startswith("hf:"):
        return
    file, colon, _ = workload.partition(".py:")
    if colon:
        if f"{file}.py" not in files and not (ROOT / f"{file}.py").exists():
            raise UserError(f"no file '{file}.py'")
    elif parse_spec(named(workload)).name not in {*CATALOGUE, *PUBLISHED, *OUTLINES}:
        raise UserError(f"no workload '{workload}'")


def _texts(value: Any) -> list[str]:
    """Return the values of an option that are not for the reader to replace."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [text for text in values if isinstance(text, str) and not FOR_THE_READER.fullmatch(text)]


@pytest.mark.parametrize("command", ALL, ids=str)
def test_commands_parse_and_name_what_exists(command: Command) -> None:
    try:
        check_command(command.arguments, frozenset(files_of(ROOT / command.page)))
    except UsageError as error:
        if not (command.in_text and type(error).__name__ == "MissingParameter"):
            raise


def test_the_pages_have_commands() -> None:
    assert {command.page for command in ALL} >= {"README.md", "docs/devices.md", "docs/own-models.md"}
    assert len({command.arguments[0] for command in ALL}) >= len(GROUP.commands) - 1


@pytest.mark.parametrize(
    "line",
    [
        "trian linear",
        "train linear --devces 2",
        "train linear --devices two",
        "train linear --strategy mirorred",
        "train linaer",
        "train examples/gone.py:build",
        "advise linear --cluster 4x-gtx-1080",
        "list strategy",
    ],
)
def test_wrong_commands_are_detected(line: str) -> None:
    with pytest.raises((UsageError, UserError)):
        check_command(tuple(line.split()))


def make_targets(path: Path) -> set[str]:
    """Return the targets in code that starts with `make`, in blocks and in the text of a page."""
    calls = re.findall(r"^make ([a-z][a-z -]*)|`make ([a-z][a-z -]*)`", text_of(path), flags=re.MULTILINE)
    return {target for pair in calls for target in " ".join(pair).split()}


@pytest.mark.parametrize("page", current_pages(), ids=name_of)
def test_targets_of_make_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert make_targets(page) <= set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))


def test_strategies_page_has_a_row_for_every_strategy() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", text_of(ROOT / "docs" / "strategies.md"), flags=re.MULTILINE)
    assert rows == list(STRATEGIES)
