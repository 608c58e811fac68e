"""Download of the study's recordings, with resume and checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from scalewise import __version__
from scalewise.core.errors import RunFailed, UserError
from scalewise.core.files import open_unlinked

ARCHIVE_URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz"
ARCHIVE_SHA256 = "8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0"
SPEAKERS = ("jackson", "nicolas", "theo", "yweweler")
"""Speakers of the study; the archive has two more."""
RECORDING = re.compile(rf"\d_({'|'.join(SPEAKERS)})_\d+\.wav")
CHUNK_BYTES = 2**16
MOST_BYTES, MOST_UNPACKED_BYTES = 2**28, 2**30
"""Limits of the download and of the recordings in it, which take 16 MB and 30 MB."""
_TIMEOUT_SECONDS = 30

Progress = Callable[[int, int | None], None]
"""Callback with the bytes received and the total bytes; None if the server does not announce the total."""


def fetch_speech(
    target: Path, url: str = ARCHIVE_URL, sha256: str = ARCHIVE_SHA256, on_progress: Progress | None = None
) -> int:
    """Download the recordings to the folder `target` unless it has them already, and return their number."""
    if count := len(list(target.glob("*.wav"))):
        return count
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"'{target}' exists and has no recordings; name an empty or a new folder")
    part = target.with_name(f"{target.name}.tar.gz.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, on_progress or (lambda *_: None))
        _verify(url, part, sha256)
        count = _unpack(url, part, target)
        part.unlink()
    except OSError as error:
        raise RunFailed(f"cannot save the recordings in '{target.parent}': {error.strerror or error}") from error
    return count


def _download(url: str, part: Path, on_progress: Progress) -> None:
    """Download to the file `part`, continuing an earlier attempt if the server supports it."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"scalewise/{__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        # "Range not satisfiable" means that the file is complete. The checksum is verified later.
        if done and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return
        raise RunFailed(f"cannot download {url}: the server answered {error.code} {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        reason = _reason(error.reason if isinstance(error, urllib.error.URLError) else error)
        raise RunFailed(f"cannot download {url}: {reason}; check the network connection") from error
    with answer:
        _receive(url, answer, part, done, on_progress)


def _receive(url: str, answer: http.client.HTTPResponse, part: Path, done: int, on_progress: Progress) -> None:
    resumed = answer.status == http.client.PARTIAL_CONTENT and _starts_at(answer, done)
    if not resumed:
        done = 0
    length = answer.headers.get("Content-Length")
    total = done + int(length) if length else None
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resumed else os.O_TRUNC)
    with os.fdopen(open_unlinked(part, flags), "ab" if resumed else "wb") as file:
        on_progress(done, total)
        while True:
            try:
                chunk = answer.read(CHUNK_BYTES)
            except (http.client.HTTPException, OSError) as error:
                raise _interrupted(url, done, _reason(error)) from error
            if not chunk:
                break
            done += len(chunk)
            if done > MOST_BYTES:
                raise RunFailed(f"the file from {url} is larger than {MOST_BYTES // 2**20} MB; the download was ended")
            file.write(chunk)
            on_progress(done, total)
    if total is not None and done < total:
        raise _interrupted(url, done, f"of {total:,} announced")


def _starts_at(answer: http.client.HTTPResponse, done: int) -> bool:
    return answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")


def _interrupted(url: str, done: int, reason: str) -> RunFailed:
    return RunFailed(
        f"the download of {url} was interrupted after {done:,} bytes ({reason}); repeat the command to continue it"
    )


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error)


def _verify(url: str, part: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if (actual := digest.hexdigest()) != sha256:
        part.unlink()
        raise RunFailed(f"the file from {url} has SHA-256 {actual}, not {sha256}; the file was deleted")


def _unpack(url: str, part: Path, target: Path) -> int:
    """Unpack the recordings to a temporary folder, rename it to `target`, and return their number."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        count = unpacked_bytes = 0
        try:
            with tarfile.open(part, "r:gz") as archive:
                for member in archive:
                    path = PurePosixPath(member.name)
                    # Only file names of the expected form are used, so no file is written to another folder.
                    if member.isreg() and path.parent.name == "recordings" and RECORDING.fullmatch(path.name):
                        content = archive.extractfile(member)
                        assert content is not None
                        unpacked_bytes += member.size
                        if unpacked_bytes > MOST_UNPACKED_BYTES:
                            raise RunFailed(
                                f"the recordings from {url} take more than {MOST_UNPACKED_BYTES // 2**20} MB unpacked"
                            )
                        with (temporary / path.name).open("wb") as file:
                            shutil.copyfileobj(content, file)
                        count += 1
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise RunFailed(f"the archive from {url} cannot be unpacked: {error}") from error
        if count == 0:
            raise RunFailed(f"the archive from {url} has no recordings/{{digit}}_{{speaker}}_{{take}}.wav")
        (temporary / "SOURCE.txt").write_text(_source_text(url), encoding="utf-8")
        temporary.chmod(0o755)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _source_text(url: str) -> str:
    return (
        f"Recordings of {', '.join(SPEAKERS)} from the Free Spoken Digit Dataset by Zohar Jackson and others.\n"
        f"Source: {url}\n"
        "Licence: Creative Commons Attribution-ShareAlike 4.0 International,\n"
        "https://creativecommons.org/licenses/by-sa/4.0/\n"
    )
