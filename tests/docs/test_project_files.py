"""Citation, changelog and continuous integration agree with the package."""

from __future__ import annotations

import re

import scalewise
from tests.command import ROOT


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_citation_names_the_version_of_the_package() -> None:
    assert re.findall(r"^version: (.*)$", text("CITATION.cff"), flags=re.MULTILINE) == [scalewise.__version__]


def test_the_workflow_runs_the_commands_of_the_local_checks() -> None:
    local = re.findall(r"^make (.*)$", text(".ci/run"), flags=re.MULTILINE)
    checks, coverage = text(".github/workflows/ci.yml").split("\n  coverage:\n")
    commands = re.compile(r"- run: make (.*)$", flags=re.MULTILINE)
    assert commands.findall(checks) == ["setup TORCH=${{ matrix.torch }}", *local]
    assert commands.findall(coverage) == ["coverage"]


def test_the_workflow_tests_three_versions_of_python() -> None:
    tested = re.findall(r'python: "([\d.]+)"', text(".github/workflows/ci.yml"))
    (oldest,) = re.findall(r'requires-python = ">=(.*)"', text("pyproject.toml"))
    assert tested == [oldest, "3.11", "3.13"]


def test_the_workflow_tests_the_pinned_and_the_oldest_torch() -> None:
    tested = set(re.findall(r'torch: "([\d.]+)"', text(".github/workflows/ci.yml")))
    (pinned,) = re.findall(r"^torch==(.*)$", text("constraints.txt"), flags=re.MULTILINE)
    (oldest,) = re.findall(r'"torch>=(.*)"', text("pyproject.toml"))
    assert tested == {pinned, f"{oldest}.0"}
