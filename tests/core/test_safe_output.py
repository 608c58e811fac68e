"""Control characters are shown, not obeyed; pages contain no HTML from names; limited encodings."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from scalewise.core.units import EscapingConsole, printable
from scalewise.reporting.finding import write_markdown
from tests.command import command


def test_control_characters_are_visible() -> None:
    assert printable("a\x1b[2Jb\x07\x9b1m\u202ec\nd\te") == "a\\x1b[2Jb\\x07\\x9b1m\\u202ec\nd\te"
    assert printable("naïve µ 日本") == "naïve µ 日本"


def test_a_console_escapes_texts_but_not_its_own_colours() -> None:
    file = io.StringIO()
    EscapingConsole(file=file, force_terminal=True, color_system="standard").print(Text("na\x1b[2Jme", "bold red"))
    assert "na\\x1b[2Jme" in file.getvalue()
    assert file.getvalue().startswith("\x1b[")


def test_names_in_a_page_are_no_html(tmp_path: Path) -> None:
    write_markdown(tmp_path / "findings.md", "# Report\n\n| <script>alert(1)</script> | a & b\x1b[2J |\n")
    assert (tmp_path / "findings.md").read_text() == (
        "# Report\n\n| &lt;script>alert(1)&lt;/script> | a &amp; b\\x1b[2J |\n"
    )


@pytest.mark.parametrize(
    ("shell", "code", "message"),
    [
        ("{} list workloads", 0, ""),
        ("{} list workloads >&-", 1, "scalewise: cannot write the output: Bad file descriptor\n"),
        ("{} clusters show $'a\\x1b[2Jb'", 2, "scalewise: unknown cluster 'a\\x1b[2Jb'"),
        ("{} measure linear --out " + 300 * "x", 2, "cannot use xxx"),
    ],
)
def test_terminals_that_cannot_show_everything(shell: str, code: int, message: str) -> None:
    output = subprocess.run(
        ["/bin/bash", "-c", shell.format(" ".join(command()))],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == code, output
    assert message in output.stderr
    assert "Traceback" not in output.stderr
