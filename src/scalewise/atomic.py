"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from scalewise.errors import RunFailed, UserError


def check_writable(path: Path) -> None:
    """Before hours of work, not after: a UserError where `path` could not be written."""
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: the folder {path.parent} is not writable")


def make_out_folder(out: Path) -> None:
    """What --out names, unless it is something else already."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out is {out}, which is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from None


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write beside `path`, flush to the disk, then rename over it; on any failure nothing is left behind.

    What a kill leaves behind has a fixed name, so that the next write replaces it.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunFailed(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
