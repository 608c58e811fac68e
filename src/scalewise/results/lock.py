"""One writer at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scalewise.errors import UserError

FILE = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """The kernel lets go of the lock when the process ends, however it ends; the file stays and means nothing."""
    import fcntl  # readers need none, and not every system has it

    try:
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            who = f"process {holder}" if holder else "another process"
            raise UserError(
                f"{who} is writing to {folder}; wait until it is through, or name another folder with --out"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
