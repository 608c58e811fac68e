"""Run the transcripts of the pages, and write what they print into the pages: `python -m tests.docs.transcripts`.

Numbers that a command measures differ from run to run; of such commands the words are compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.command import ROOT, command
from tests.docs.pages import Command, current_pages, files_of, text_of, transcripts_of

MEASURING = {"train", "measure", "profile", "doctor", "report"}
"""Commands whose output contains times of this machine."""
GAP = "..."
"""Line of a transcript that stands for any number of lines."""


def working_folder(page: Path, folder: Path) -> None:
    """Fill the folder in which a page's commands run: its files, and the examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, text in files_of(page).items():
        (folder / name).write_text(text, encoding="utf-8")


def lines_of(output: str) -> list[str]:
    lines = [line.rstrip() for line in output.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def agrees(arguments: tuple[str, ...], expected: tuple[str, ...], output: str) -> bool:
    """Whether an output is what a page shows: the same lines, or the same words if the command measures."""
    shown, printed = lines_of("\n".join(expected)), lines_of(output)
    if arguments[0] in MEASURING:
        words = [line if line == GAP else " ".join(_words(line)) for line in shown]
        return _matches(words, [" ".join(_words(line)) for line in printed])
    return _matches(shown, printed)


def _matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines agree; a gap matches any number of lines."""
    shown, printed = [line for line in shown if line], [line for line in printed if line]
    pattern = "".join(r"(?:.*\n)*?" if line == GAP else re.escape(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def _words(line: str) -> list[str]:
    """Return the words of a line; numbers, units and bars are left out."""
    return re.findall(r"[a-z][a-z_-]{3,}", line)


def rewritten(page: Path) -> str:
    """Run the transcripts of a page and return the page with their output."""
    lines = text_of(page).split("\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        working_folder(page, folder)
        outputs = [(transcript, _output(transcript, folder)) for transcript in transcripts_of(page)]
    for transcript, output in reversed(outputs):
        assert transcript.expected is not None
        if not agrees(transcript.arguments, transcript.expected, output):
            end = transcript.line + len(transcript.expected)
            lines[transcript.line : end] = _shortened(output, transcript)
    return "\n".join(lines)


def _shortened(output: str, transcript: Command) -> list[str]:
    """Return the lines of an output, up to the same paragraph as a transcript that ends with a gap."""
    printed, shown = lines_of(output), list(transcript.expected or ())
    if GAP not in shown:
        return printed
    if shown[-1] != GAP or shown.count(GAP) > 1:
        print(f"{transcript}: write it again by hand, because it has a gap inside", file=sys.stderr)
        return shown
    paragraphs = shown.count("") + (shown[-2] != "")
    ends = [number for number, line in enumerate(printed) if not line]
    return [*printed[: ends[paragraphs - 1]], GAP] if len(ends) >= paragraphs else printed


def _output(transcript: Command, folder: Path) -> str:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        command(*transcript.arguments), cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == 0, f"{transcript}: exit code {run.returncode}"
    return run.stdout


if __name__ == "__main__":
    for page in current_pages():
        if transcripts_of(page):
            page.write_text(rewritten(page), encoding="utf-8")
