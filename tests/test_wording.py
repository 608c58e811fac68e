"""Retired phrases and names of docs/glossary.md appear in no docstring, comment, message, identifier or document."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
CODE = [path for folder in ("src", "tests", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if not re.match(r"\d{4}-", path.name)),
]
"""Dated logs are records, which are not rewritten."""
BAD_START = re.compile(r"(Of|As is|So many|Those that|The same of|Its|Their)\b|That,")
JSON_KEYS = {("doctor.py", "found")}
"""Fields that keep their name because they are keys of a JSON document."""


def rows_of(heading: str) -> list[str]:
    """First column of the table under a heading of the glossary."""
    section = GLOSSARY.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return cells[2:]


@cache
def retired_phrases() -> re.Pattern[str]:
    phrases = [phrase.strip() for row in rows_of("Retired phrases") for phrase in row.split(";")]
    assert len(phrases) > 20
    patterns = [r'[\s"#]+'.join(map(re.escape, phrase.split())) for phrase in phrases]
    return re.compile(rf"\b(?:{'|'.join(patterns)})\b", re.IGNORECASE)


@cache
def retired_names() -> frozenset[str]:
    names = re.findall(r"`(\w+)`", rows_of("Retired names")[0])
    assert {"each", "found", "so_many"} <= set(names)
    return frozenset(names)


def line_of(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def problems_in_text(name: str, text: str) -> list[str]:
    if name == "docs/glossary.md":
        text = text.split("## Retired phrases")[0]
    return [
        f"{name}:{line_of(text, match)}: '{' '.join(match.group().split())}' is retired"
        for match in retired_phrases().finditer(text)
    ]


def docstring_in(statement: ast.stmt) -> str | None:
    """Text of a statement that is a string: the docstring of a module, class, function or field."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value.strip() if isinstance(statement.value.value, str) else None
    return None


def name_in(node: ast.AST) -> str | None:
    """Name of a variable that is assigned, of an argument, a function or a class."""
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else None


def problems_in_code(name: str, source: str) -> list[str]:
    problems = problems_in_text(name, source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and BAD_START.match(docstring_in(node) or ""):
            problems.append(f"{name}:{node.lineno}: docstring starts with '{(docstring_in(node) or '')[:20]}'")
        new = name_in(node)
        if new in retired_names() and (Path(name).name, new) not in JSON_KEYS:
            problems.append(f"{name}:{getattr(node, 'lineno', 0)}: the name '{new}' is retired")
    return problems


def test_code_has_no_retired_wording() -> None:
    problems = [
        problem
        for path in CODE
        if path != Path(__file__).resolve()
        for problem in problems_in_code(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    assert not problems, "\n".join(problems)


def test_documents_have_no_retired_phrase() -> None:
    problems = [
        problem
        for path in DOCUMENTS
        for problem in problems_in_text(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('raise ValueError("this strategy learns otherwise")', "code.py:1: 'learns otherwise' is retired"),
        ("size = 1  # so many of them", "code.py:1: 'so many of' is retired"),
        ('x = f"{1} rehearsed host"', "code.py:1: 'rehearsed host' is retired"),
        ('class A:\n    size: int\n    """Of one sample."""', "code.py:3: docstring starts with 'Of one sample.'"),
        ("for each in range(3):\n    pass", "code.py:1: the name 'each' is retired"),
        ("def f(told: int) -> int:\n    return told", "code.py:1: the name 'told' is retired"),
    ],
)
def test_retired_wording_is_detected_in_code(source: str, problem: str) -> None:
    assert problems_in_code("code.py", source) == [problem]


def test_a_retired_phrase_is_detected_in_a_document_across_lines() -> None:
    assert problems_in_text("docs/x.md", "It is how\nit is spread.") == ["docs/x.md:1: 'how it is spread' is retired"]
    assert not problems_in_text("docs/glossary.md", "## Retired phrases\n| on loan | fetched |")
