"""Numbers separated by commas."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time

import pytest

from scalewise.core.arguments import whole_numbers
from scalewise.core.errors import UserError
from tests.command import command, finish, start


def test_numbers_keep_their_order() -> None:
    assert whole_numbers("--batch", "20, 10,50") == [20, 10, 50]


@pytest.mark.parametrize("text", ["", "0", "-1", "10,", "1.5", "ten", "10;20", "²"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--batch is '{text}'; it must be whole numbers from 1")):
        whole_numbers("--batch", text)


LINE = ("train", "tests.tiny:float32", "--batch", "4", "--samples", "400", "--steps", "4000", "--device-kind", "cpu")


def on_a_terminal(*line: str) -> tuple[str, str]:
    """Return stdout, and what was written to a terminal of 120 columns on stderr."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = start(*line, stderr=theirs, env_more={"TERM": "xterm", "COLUMNS": "120"})
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        select.select([ours], [], [], 1)
        try:
            chunk = os.read(ours, 65536)
        except BlockingIOError:
            continue
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert process.stdout is not None
    return process.communicate()[0], written.decode()


@pytest.mark.slow
def test_a_terminal_shows_steps_samples_per_second_and_loss() -> None:
    stdout, stderr = on_a_terminal(*LINE)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr)
    assert re.search(r"[1-9][\d,]*/4,000 steps", text)
    assert re.search(r"\d samples/s", text)
    assert re.search(r"epoch \d+", text)
    assert re.search(r"loss \d\.\d{3}", text)
    assert "4 global" in stdout


@pytest.mark.slow
def test_a_pipe_gets_the_result_only() -> None:
    output = finish(start(*LINE[:-4], "--steps", "8", "--device-kind", "cpu"))
    assert (output.code, output.stderr) == (0, "")
    assert "4 global" in output.stdout


def test_the_reader_of_a_pipe_may_leave() -> None:
    process = subprocess.Popen(
        command("list", "workloads", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), stderr) == (1, "")
