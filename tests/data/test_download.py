"""Downloads from a real server on loopback: resume, checksum, safe unpacking and errors."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from scalewise.core.errors import RunFailed, UserError
from scalewise.data.download import fetch_speech

WAVS = {f"set-1.0.9/recordings/{name}.wav": Random(name).randbytes(999) for name in ("0_jackson_0", "9_theo_49")}
OTHERS = {
    "set-1.0.9/recordings/1_george_3.wav": b"another speaker",
    "set-1.0.9/README.md": b"read me",
    "set-1.0.9/recordings/../../../1_theo_1.wav": b"outside the folder",
    "/recordings/2_theo_2.exe": b"not a recording",
}


def archive(members: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("set-1.0.9/recordings/3_theo_3.wav")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return memory.getvalue()


ARCHIVE = archive({**WAVS, **OTHERS})
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


class Server(ThreadingHTTPServer):
    """Server of one file.

    `ranges`: whether it supports range requests. `cut_after`: number of bytes after which it ends the answer.
    `announces`: whether it sends the size.
    """

    def __init__(self, content: bytes, ranges: bool, cut_after: int | None, announces: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cut_after, self.announces = content, ranges, cut_after, announces
        self.requested_ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/speech.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        requested = self.headers.get("Range")
        self.server.requested_ranges.append(requested)
        start = int(requested[6:-1]) if requested and self.server.ranges else 0
        content = self.server.content
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.server.announces:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.cut_after])

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(
    content: bytes = ARCHIVE, ranges: bool = True, cut_after: int | None = None, announces: bool = True
) -> Iterator[Server]:
    with Server(content, ranges, cut_after, announces) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "speech"


def files_beside(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_download_unpacks_the_four_speakers_and_writes_the_licence(target: Path) -> None:
    progress: list[tuple[int, int | None]] = []
    with serving() as server:
        assert fetch_speech(target, server.url, SHA256, lambda done, total: progress.append((done, total))) == 2
        source = (target / "SOURCE.txt").read_text()
        assert server.url in source
    assert "Attribution-ShareAlike 4.0" in source
    assert files_beside(target) == ["speech"]
    assert sorted(path.name for path in target.iterdir()) == ["0_jackson_0.wav", "9_theo_49.wav", "SOURCE.txt"]
    assert (target / "9_theo_49.wav").read_bytes() == WAVS["set-1.0.9/recordings/9_theo_49.wav"]
    assert progress[0] == (0, len(ARCHIVE))
    assert progress[-1] == (len(ARCHIVE), len(ARCHIVE))


def test_existing_recordings_are_not_downloaded_again(target: Path) -> None:
    with serving() as server:
        fetch_speech(target, server.url, SHA256)
        assert fetch_speech(target, server.url, SHA256) == 2
        assert server.requested_ranges == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_continues_or_restarts(target: Path, ranges: bool) -> None:
    with serving(cut_after=500) as server, pytest.raises(RunFailed, match="interrupted after 500 bytes"):
        fetch_speech(target, server.url, SHA256)
    assert files_beside(target) == ["speech.tar.gz.part"]
    with serving(ranges=ranges) as server:
        assert fetch_speech(target, server.url, SHA256) == 2
        assert server.requested_ranges == ["bytes=500-"]
    assert files_beside(target) == ["speech"]


def test_a_server_that_does_not_announce_the_size(target: Path) -> None:
    totals: set[int | None] = set()
    with serving(announces=False) as server:
        assert fetch_speech(target, server.url, SHA256, lambda _, total: totals.add(total)) == 2
    assert totals == {None}


def test_a_complete_part_file_is_used(target: Path) -> None:
    target.parent.mkdir()
    target.with_name("speech.tar.gz.part").write_bytes(ARCHIVE)
    with serving() as server:
        assert fetch_speech(target, server.url, SHA256) == 2


def test_a_wrong_checksum_leaves_no_files(target: Path) -> None:
    with serving(ARCHIVE[:-1] + b"x") as server, pytest.raises(RunFailed, match=f"not {SHA256}; the file was deleted"):
        fetch_speech(target, server.url, SHA256)
    assert files_beside(target) == []


def test_an_archive_that_cannot_be_unpacked_leaves_no_folder(target: Path) -> None:
    content = ARCHIVE[: len(ARCHIVE) // 2]
    with serving(content) as server, pytest.raises(RunFailed, match="cannot be unpacked"):
        fetch_speech(target, server.url, hashlib.sha256(content).hexdigest())
    assert not target.exists()


def test_an_archive_without_recordings_leaves_no_folder(target: Path) -> None:
    content = archive(OTHERS | {"set-1.0.9/recordings/../../../1_theo_1.wav": b""})
    with serving(content) as server, pytest.raises(RunFailed, match="has no recordings"):
        fetch_speech(target, server.url, hashlib.sha256(content).hexdigest())
    assert not target.exists()


def test_error_without_a_server(target: Path) -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(RunFailed, match=re.escape(f"cannot download {url}: Connection refused")):
        fetch_speech(target, url, SHA256)


def test_error_names_the_status_of_the_server(target: Path) -> None:
    with Server(b"", True, None, True) as server:
        server.RequestHandlerClass = BaseHTTPRequestHandler
        Thread(target=server.handle_request).start()
        with pytest.raises(RunFailed, match="the server answered 501"):
            fetch_speech(target, server.url, SHA256)


def test_error_on_a_full_disk(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.parent.mkdir()
    monkeypatch.setattr("scalewise.data.download.open_unlinked", lambda *_: os.open("/dev/full", os.O_WRONLY))
    with (
        serving() as server,
        pytest.raises(RunFailed, match=r"cannot save the recordings in .*No space left on device"),
    ):
        fetch_speech(target, server.url, SHA256)
    assert not target.exists()


def test_a_folder_with_other_files_is_refused(target: Path) -> None:
    target.mkdir(parents=True)
    (target / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="exists and has no recordings"):
        fetch_speech(target, "http://127.0.0.1:9/", SHA256)
