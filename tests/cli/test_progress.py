"""Progress is for people: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time

from tests.command import command, finish, start

LINE = ("train", "tests.tiny:float32", "--batch", "4", "--samples", "400", "--steps", "4000", "--device-kind", "cpu")


def on_a_terminal(*line: str) -> tuple[str, str]:
    """stdout and everything that a terminal of 120 columns on stderr was sent."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = start(*line, stderr=theirs, env_more={"TERM": "xterm", "COLUMNS": "120"})
    os.close(theirs)
    seen = b""
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
        seen += chunk
    os.close(ours)
    assert process.stdout is not None
    return process.communicate()[0], seen.decode()


def test_a_terminal_shows_steps_samples_per_second_and_loss() -> None:
    stdout, stderr = on_a_terminal(*LINE)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr)
    assert re.search(r"[1-9][\d,]*/4,000 steps", text)
    assert re.search(r"\d samples/s", text)
    assert re.search(r"epoch \d+", text)
    assert re.search(r"loss \d\.\d{3}", text)
    assert "4 global = 4 per device" in stdout


def test_a_pipe_gets_the_result_only() -> None:
    said = finish(start(*LINE[:-4], "--steps", "8", "--device-kind", "cpu"))
    assert (said.code, said.stderr) == (0, "")
    assert "4 global = 4 per device" in said.stdout


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
