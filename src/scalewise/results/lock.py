"""One writer at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalewise.errors import RunFailed, UserError

FILE = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """The kernel lets go of the lock when the process ends, however it ends: a file that a kill leaves means nothing.

    The file goes while it is still locked, so nobody is locked out by it; who locked it nevertheless tries again.
    """
    path = folder / FILE
    descriptor = _locked(path)
    try:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise RunFailed(f"cannot write {path}: {error.strerror}") from error
        yield
    finally:
        with suppress(OSError):  # the folder may be gone
            path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int:
    """A descriptor of the file that now has this name, locked."""
    import fcntl  # readers need none, and not every system has it

    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"cannot write to {path.parent}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            who = f"process {holder}" if holder else "another process"
            raise UserError(
                f"{who} is writing to {path.parent}; wait until it is through, or name another folder with --out"
            ) from None
        except FileNotFoundError:
            pass  # it went between the two looks at it
        os.close(descriptor)
