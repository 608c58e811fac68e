"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from scalewise.errors import RunFailed


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write beside `path`, flush to the disk, then rename over it; on any failure nothing is left behind."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
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
