"""Read the Markdown pages: code blocks, commands, transcripts, files to copy, links and headings.

A block is a transcript if its first line starts with `$ `. Then every line that starts with `$ ` is a command and the
lines below it are what it prints; a line `...` stands for any number of lines. In other blocks, lines that start with
`scalewise` are commands that are shown but not run. A block whose first line is `# NAME.py` or `# NAME.toml` is a
file: the commands of its page find it in their working folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.command import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RECORD = re.compile(r"docs/decisions/\d{4}-")
"""Dated pages: their commands are those of their day."""
COMMAND = re.compile(r"(?:.*\s-m )?(?:\.venv/bin/)?scalewise (.*)")
FILE_LINE = re.compile(r"# ([\w-]+\.(?:py|toml))")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def is_transcript(self) -> bool:
        return bool(self.lines) and self.lines[0].startswith("$ ")

    @property
    def file_name(self) -> str | None:
        """Name of the file whose content the block is."""
        match = FILE_LINE.fullmatch(self.lines[0]) if self.lines else None
        return match[1] if match else None


@dataclass(frozen=True)
class Command:
    """A command of a page, with what the page says it prints if it is part of a transcript."""

    page: str
    line: int
    arguments: tuple[str, ...]
    expected: tuple[str, ...] | None = None
    in_text: bool = False
    """Whether it is part of a sentence, where required arguments may be left out."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def current_pages() -> list[Path]:
    """Return the pages that describe Scalewise as it is, without dated records."""
    return [path for path in PAGES if not RECORD.match(name_of(path)) and path.name != "CHANGELOG.md"]


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the fenced code blocks of a page."""
    lines = text_of(path).splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            yield Block(name_of(path), start + 2, lines[start][3:].strip(), tuple(lines[start + 1 : number]))
            start = None
    assert start is None, f"{name_of(path)}: a code block has no end"


def arguments_of(line: str) -> tuple[str, ...] | None:
    """Return the arguments of a line that calls scalewise, without a comment, or None for other lines."""
    match = COMMAND.fullmatch(line.strip())
    return tuple(shlex.split(match[1], comments=True)) if match else None


def commands_of(path: Path) -> Iterator[Command]:
    """Yield the commands of all code blocks of a page, and of code in the text that starts with `scalewise `."""
    for block in blocks_of(path):
        if block.is_transcript:
            yield from _transcript(block)
        elif block.language not in ("python", "toml"):
            # A backslash continues a command on the next line.
            number = 0
            for line in block.text.replace("\\\n", "\0").splitlines():
                arguments = arguments_of(line.replace("\0", " "))
                if arguments is not None:
                    yield Command(block.page, block.line + number, arguments)
                number += 1 + line.count("\0")
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        for match in re.finditer(r"`scalewise ([^`]*)`", line):
            yield Command(name_of(path), number, tuple(shlex.split(match[1])), in_text=True)


def _transcript(block: Block) -> Iterator[Command]:
    starts = [number for number, line in enumerate(block.lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        arguments = arguments_of(block.lines[start][2:])
        assert arguments is not None, f"{block.page}:{block.line + start}: a transcript of another command"
        yield Command(block.page, block.line + start, arguments, block.lines[start + 1 : end])


def transcripts_of(path: Path) -> list[Command]:
    return [command for command in commands_of(path) if command.expected is not None]


def files_of(path: Path) -> dict[str, str]:
    """Return the files that a page shows, by name."""
    return {block.file_name: block.text for block in blocks_of(path) if block.file_name}


def prose_of(path: Path) -> str:
    """Return a page without its code blocks and inline code."""
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def links_of(path: Path) -> list[str]:
    """Return the targets of a page's links and images."""
    return re.findall(r"\]\(([^()\s]+)\)", prose_of(path))


@cache
def anchors_of(path: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as code hosts name them."""
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
