"""The docstrings of the Python functions are complete, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import scalewise

FUNCTIONS = sorted(name for name in scalewise.__all__ if name[0].islower())
FAST = {"advise", "describe", "doctor"}
"""Functions whose examples take less than a second."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_documented(name: str) -> None:
    function = getattr(scalewise, name)
    text = inspect.getdoc(function) or ""
    arguments = re.search(r"^Args:\n(.*?)\n\n", text, flags=re.DOTALL | re.MULTILINE)
    documented = re.findall(r"^    (\w+): ", arguments[1], flags=re.MULTILINE) if arguments else []
    assert documented == list(inspect.signature(function).parameters)
    assert "\nReturns:\n" in text
    assert "\nExamples:\n" in text


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FUNCTIONS]
)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    text = inspect.getdoc(getattr(scalewise, name)) or ""
    test = doctest.DocTestParser().get_doctest(text, {"scalewise": scalewise}, name, None, 0)
    assert test.examples
    failures: list[str] = []
    doctest.DocTestRunner().run(test, out=failures.append)
    assert not failures, "".join(failures)
