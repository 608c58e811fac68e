"""Fetches the study's recordings once: resumable, checked before unpacking, in place whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
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
from scalewise.errors import RunFailed, UserError

ARCHIVE_URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz"
ARCHIVE_SHA256 = "8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0"
SPEAKERS = ("jackson", "nicolas", "theo", "yweweler")
"""The study's; the archive has two more."""
RECORDING = re.compile(rf"\d_({'|'.join(SPEAKERS)})_\d+\.wav")
CHUNK_BYTES = 2**16
SECONDS_OF_SILENCE = 30

Progress = Callable[[int, int | None], None]
"""(bytes so far, bytes in all or None where the server does not say)."""


def fetch_speech(
    target: Path, url: str = ARCHIVE_URL, sha256: str = ARCHIVE_SHA256, on_progress: Progress | None = None
) -> int:
    """Puts the recordings into the folder `target`, unless they are there already; says how many there are."""
    if there := len(list(target.glob("*.wav"))):
        return there
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"'{target}' exists and holds no recordings; name a folder that is empty or not there yet")
    part = target.with_name(f"{target.name}.tar.gz.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, on_progress or (lambda *_: None))
        _verify(url, part, sha256)
        count = _unpack(url, part, target)
        part.unlink()
    except OSError as error:
        raise RunFailed(f"cannot store the recordings in '{target.parent}': {error.strerror or error}") from error
    return count


def _download(url: str, part: Path, on_progress: Progress) -> None:
    """Goes on where an earlier attempt stopped, if the server can."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"scalewise/{__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS_OF_SILENCE)
    except urllib.error.HTTPError as error:
        error.close()
        # "Range not satisfiable": nothing is missing. The checksum decides whether it is the right file.
        if done and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return
        raise RunFailed(f"cannot fetch {url}: the server answers {error.code} {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        reason = _reason(error.reason if isinstance(error, urllib.error.URLError) else error)
        raise RunFailed(f"cannot fetch {url}: {reason}; is there a network?") from error
    with answer:
        _receive(url, answer, part, done, on_progress)


def _receive(url: str, answer: http.client.HTTPResponse, part: Path, done: int, on_progress: Progress) -> None:
    resumed = answer.status == http.client.PARTIAL_CONTENT and _starts_at(answer, done)
    if not resumed:
        done = 0
    length = answer.headers.get("Content-Length")
    total = done + int(length) if length else None
    with part.open("ab" if resumed else "wb") as file:
        on_progress(done, total)
        while True:
            try:
                chunk = answer.read(CHUNK_BYTES)
            except (http.client.HTTPException, OSError) as error:
                raise _interrupted(url, done, _reason(error)) from error
            if not chunk:
                break
            file.write(chunk)
            done += len(chunk)
            on_progress(done, total)
    if total is not None and done < total:
        raise _interrupted(url, done, f"{total:,} were announced")


def _starts_at(answer: http.client.HTTPResponse, done: int) -> bool:
    return answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")


def _interrupted(url: str, done: int, why: str) -> RunFailed:
    return RunFailed(
        f"the download of {url} broke off after {done:,} bytes ({why}); the same command goes on from there"
    )


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error)


def _verify(url: str, part: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if (found := digest.hexdigest()) != sha256:
        part.unlink()
        raise RunFailed(f"what {url} gave has SHA-256 {found}, not {sha256}; it was deleted, nothing was unpacked")


def _unpack(url: str, part: Path, target: Path) -> int:
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        count = 0
        try:
            with tarfile.open(part, "r:gz") as archive:
                for member in archive:
                    place = PurePosixPath(member.name)
                    # Only the last part of a name is used, and it has one form: nothing can land elsewhere.
                    if member.isreg() and place.parent.name == "recordings" and RECORDING.fullmatch(place.name):
                        content = archive.extractfile(member)
                        assert content is not None
                        with (beside / place.name).open("wb") as file:
                            shutil.copyfileobj(content, file)
                        count += 1
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise RunFailed(f"the archive from {url} cannot be unpacked: {error}") from error
        if count == 0:
            raise RunFailed(f"the archive from {url} holds no recordings/{{digit}}_{{speaker}}_{{take}}.wav")
        (beside / "SOURCE.txt").write_text(_note(url), encoding="utf-8")
        beside.chmod(0o755)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return count


def _note(url: str) -> str:
    return (
        f"Recordings of {', '.join(SPEAKERS)} from the Free Spoken Digit Dataset by Zohar Jackson and others.\n"
        f"Source: {url}\n"
        "Licence: Creative Commons Attribution-ShareAlike 4.0 International,\n"
        "https://creativecommons.org/licenses/by-sa/4.0/\n"
    )
