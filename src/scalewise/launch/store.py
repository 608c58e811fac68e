"""Stores of a session: keys and values through which its processes find each other.

Ranks of one machine use a `SocketStore`, which only processes of the same user can reach. torch's `TCPStore` has no
password; it remains where ranks run on several machines, and with NCCL, whose threads use the store without Python.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import util
from pathlib import Path
from threading import Condition, Thread, local
from time import monotonic
from uuid import uuid4

import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from scalewise.core.files import peer_user

_OK, _TIMEOUT = b"ok", b"timeout"
_MOST_BYTES = 2**30
"""Largest message; the largest values are buffers of asynchronous workers."""
_CHECK_SECONDS = 1.0
"""Interval in which a wait checks whether its client still exists."""


def open_tcp_store(address: str, timeout_seconds: float) -> TCPStore:
    """Open a store that listens on a free port of this address only.

    The port is bound before torch gets it, so that no other process can take it.
    """
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        return TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
            master_listen_fd=server.detach(),
        )


@contextmanager
def serve_store(timeout_seconds: float) -> Iterator[SocketStore]:
    """Serve a store until the block ends; other processes connect with `SocketStore(store.path, ...)`.

    The socket is in the folder of the forkserver, which only this user can enter and which is removed in any case. The
    kernel confirms the user of every connection.
    """
    path = Path(util.get_temp_dir()) / f"store-{uuid4().hex[:8]}"
    server = _Server(path)
    store = SocketStore(str(path), timeout_seconds)
    try:
        yield store
    finally:
        store.release()
        server.close()
        path.unlink(missing_ok=True)


class _Server:
    def __init__(self, path: Path) -> None:
        self._values: dict[bytes, bytes] = {}
        self._changed = Condition()
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(256)
        Thread(target=self._accept, name="scalewise-store", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for listener_or_connection in (self._socket, *self._connections):
                with suppress(OSError):
                    listener_or_connection.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                if peer_user(connection) == os.geteuid():
                    Thread(target=self._serve, args=(connection,), name="scalewise-store", daemon=True).start()
                else:
                    connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with self._changed:
            self._connections.add(connection)
        with connection, suppress(OSError, EOFError):
            while not self._closed:
                operation, *arguments = _receive(connection)
                _send(connection, self._answer(operation, arguments, connection))
        with self._changed:
            self._connections.remove(connection)

    def _answer(self, operation: bytes, arguments: list[bytes], connection: socket.socket) -> list[bytes]:
        with self._changed:
            match operation:
                case b"set":
                    self._write(*arguments)
                case b"get":
                    timeout, key = arguments
                    if not self._wait([key], float(timeout), connection):
                        return [_TIMEOUT]
                    return [_OK, self._values[key]]
                case b"wait":
                    timeout, *keys = arguments
                    return [_OK if self._wait(keys, float(timeout), connection) else _TIMEOUT]
                case b"check":
                    return [_OK, b"1" if self._has(arguments) else b"0"]
                case b"add":
                    key, amount = arguments
                    self._write(key, b"%d" % (int(self._values.get(key, b"0")) + int(amount)))
                    return [_OK, self._values[key]]
                case b"compare_set":
                    key, expected, desired = arguments
                    current = self._values.get(key, b"")
                    if current == expected:
                        self._write(key, desired)
                        return [_OK, desired]
                    return [_OK, current if key in self._values else expected]
                case b"delete":
                    return [_OK, b"1" if self._values.pop(arguments[0], None) is not None else b"0"]
                case b"count":
                    return [_OK, b"%d" % len(self._values)]
        return [_OK]

    def _write(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _has(self, keys: Sequence[bytes]) -> bool:
        return all(key in self._values for key in keys)

    def _wait(self, keys: Sequence[bytes], seconds: float, connection: socket.socket) -> bool:
        deadline = monotonic() + seconds
        while not self._has(keys):
            left = deadline - monotonic()
            if left <= 0 or self._closed or _is_closed(connection):
                return False
            self._changed.wait(min(left, _CHECK_SECONDS))
        return True


class _ThreadsConnection(socket.socket):
    """Connection of one thread; closed when the thread has ended."""

    def __del__(self) -> None:
        self.close()


class SocketStore(Store):
    """Client of a store that another process, or this one, serves.

    Every thread has a connection of its own, so that a thread that waits does not block others.
    """

    port = None
    """There is no TCP port, and no traffic to subtract from that of the ranks."""
    _in_use: list[SocketStore] = []  # noqa: RUF012
    """All stores of this process: torch keeps only the C++ half of a store alive."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__()
        self.path, self._timeout_seconds = path, timeout_seconds
        self._connections = local()
        self._in_use.append(self)

    def release(self) -> None:
        """Forget this store; no process group of this process may use it any more."""
        with suppress(ValueError):
            self._in_use.remove(self)

    def clone(self) -> SocketStore:
        return self

    def set(self, key: str, value: str | bytes) -> None:
        self._request(b"set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        return self._request(b"get", b"%f" % self._timeout_seconds, key.encode())[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._timeout_seconds if timeout is None else timeout.total_seconds()
        self._request(b"wait", b"%f" % seconds, *[key.encode() for key in keys])

    def check(self, keys: list[str]) -> bool:
        return self._request(b"check", *[key.encode() for key in keys]) == [b"1"]

    def add(self, key: str, amount: int) -> int:
        return int(self._request(b"add", key.encode(), b"%d" % amount)[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._request(b"compare_set", key.encode(), _bytes(expected), _bytes(desired))[0]

    def delete_key(self, key: str) -> bool:
        return self._request(b"delete", key.encode()) == [b"1"]

    def num_keys(self) -> int:
        return int(self._request(b"count")[0])

    deleteKey, getNumKeys = delete_key, num_keys  # names that torch's C++ part calls

    def _request(self, operation: bytes, *arguments: bytes) -> list[bytes]:
        try:
            _send(self._connection(), [operation, *arguments])
            status, *values = _receive(self._connection())
        except (OSError, EOFError) as error:
            raise dist.DistNetworkError(f"scalewise store: connection closed ({error})") from error
        if status == _TIMEOUT:
            keys = ", ".join(argument.decode(errors="replace") for argument in arguments[1:])
            raise dist.DistStoreError(f"scalewise store timed out: no {keys} after {float(arguments[0]):g} s")
        return values

    def _connection(self) -> socket.socket:
        connection: socket.socket | None = getattr(self._connections, "socket", None)
        if connection is None:
            connection = _ThreadsConnection(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(self.path)
            self._connections.socket = connection
        return connection


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _send(connection: socket.socket, fields: Sequence[bytes]) -> None:
    header = struct.pack(f"!I{len(fields)}I", len(fields), *map(len, fields))
    connection.sendall(b"".join([header, *fields]))


def _receive(connection: socket.socket) -> list[bytes]:
    [count] = struct.unpack("!I", _read(connection, 4))
    sizes = struct.unpack(f"!{count}I", _read(connection, 4 * count))
    return [_read(connection, size) for size in sizes]


def _read(connection: socket.socket, size: int) -> bytes:
    if size > _MOST_BYTES:
        raise OSError(f"a message of {size:,} bytes")
    data = bytearray()
    while len(data) < size:
        if not (more := connection.recv(min(size - len(data), 2**20))):
            raise EOFError("the other end is closed")
        data += more
    return bytes(data)


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the client of a waiting request is gone; it sends nothing while it waits."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
