"""Clearing up that happens however this process ends, kill -9 included."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def afterwards(script: str, if_killed: str = ":") -> Iterator[None]:
    """Run a shell script when the block ends, or when this process does; `if_killed` comes first in the latter case.

    The shell waits on a pipe that only this process holds, so the kernel tells it, and in a session of its own, so that
    Ctrl-C does not reach it.
    """
    janitor = subprocess.Popen(
        ["/bin/sh", "-c", f'read -r ended; [ -n "$ended" ] || {{ {if_killed}; }}; {script}'],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        janitor.communicate(b"ended\n")
