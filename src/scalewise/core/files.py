"""Atomic file writes, folder locks and the cache folder."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from scalewise.core.errors import RunFailed, UserError

_PART = ".part"
_NEW_SECONDS = 1.0
"""Age from which an unlocked temporary file is abandoned: a new file is locked a moment after it is created."""
_SHOWN_CHARACTERS = 80


def check_writable(path: Path) -> None:
    """Raise UserError if `path` cannot be written, so that a run of hours fails at its start."""
    if _exists(path) and path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: the folder {path.parent} is not writable")


def make_out_folder(out: Path) -> None:
    """Create the folder given by --out; raise UserError if it is an existing file."""
    if _exists(out) and not out.is_dir():
        raise UserError(f"--out is {out}, which is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {out}: {error.strerror}") from None


def check_usable(path: Path) -> None:
    """Raise UserError for a name that no file or folder can have."""
    _exists(path)


def _exists(path: Path) -> bool:
    """Whether there is a file or folder of this name; raise UserError for a name that no file can have."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"cannot use {_shortened(path)}: {reason}") from None
    return path.exists()


def _shortened(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def read_limited(path: Path, most_bytes: int) -> bytes:
    """Read a whole file; raise UserError if it is larger than `most_bytes`."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(f"{path} is larger than {most_bytes // 2**20} MB, the largest file of its kind that is read")
    return content


def open_unlinked(path: Path, flags: int) -> int:
    """Open a file for writing, but not through a symbolic link, which may lead to any file; return its descriptor."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"cannot write {path}: it is a symbolic link; remove it") from None
        raise


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a temporary file in the same folder, flush it to the disk, and rename it to `path`.

    The name of the temporary file is random, so that nobody can put a link in its place. An error removes the file. A
    killed process leaves it behind, unlocked, and the next write removes it.
    """
    import fcntl  # imported here because Windows has no fcntl, and reading needs no lock

    remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_PART}")
    try:
        with open_exclusively(temporary) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunFailed(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_exclusively(path: Path) -> BinaryIO:
    """Create a file and open it for writing; an existing file or link of this name is an error."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


def remove_abandoned(path: Path) -> None:
    """Remove temporary files that killed processes left when they wrote `path`."""
    import fcntl

    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{_PART}"):
        with suppress(OSError):  # a link, or removed by another process
            descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process writes
                if time.time() - os.fstat(descriptor).st_mtime > _NEW_SECONDS:
                    temporary.unlink()
            finally:
                os.close(descriptor)


FILE = ".lock"


def sole_writer(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of a folder; raise UserError if another process holds it."""
    path = folder / FILE
    return _exclusive(path, path, f"is writing to {folder}; wait until it ends, or name another folder with --out")


def sole_trainer(checkpoint: Path) -> AbstractContextManager[None]:
    """Hold the lock of a checkpoint file; raise UserError if another process holds it."""
    return _exclusive(
        checkpoint.with_name(f".{checkpoint.name}{FILE}"),
        checkpoint,
        f"is training with checkpoint {checkpoint}; wait until it ends, or name another file with --checkpoint",
    )


@contextmanager
def _exclusive(path: Path, target: Path, refusal: str) -> Iterator[None]:
    """Hold a lock on the file `path` and remove the file at the end. The error for a full disk names `target`.

    The kernel releases the lock when the process ends, also after kill -9, so a file left by a killed process does not
    block others. The file is removed while it is still locked; a process that locked the removed file tries again.
    """
    descriptor = _locked(path, refusal)
    try:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise RunFailed(f"cannot write {target}: {error.strerror}") from error
        yield
    finally:
        with suppress(OSError):  # the folder may be gone
            path.unlink()
        os.close(descriptor)


def _locked(path: Path, refusal: str) -> int:
    """Return the descriptor of the locked file."""
    import fcntl  # imported here because Windows has no fcntl, and reading needs no lock

    while True:
        try:
            descriptor = open_unlinked(path, os.O_RDWR | os.O_CREAT)
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
            raise UserError(f"{who} {refusal}") from None
        except FileNotFoundError:
            pass  # the previous holder removed the file after it was opened here
        os.close(descriptor)


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/scalewise or ~/.cache/scalewise; the folder may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # the XDG specification requires relative paths to be ignored
        return Path(base) / "scalewise"
    try:
        return Path.home() / ".cache" / "scalewise"
    except RuntimeError:
        raise RunFailed("there is no home folder for the cache; set HOME or XDG_CACHE_HOME") from None


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user
