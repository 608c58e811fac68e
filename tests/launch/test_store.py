"""Tests of the store of a session: its operations, waits, and who can reach it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]

from scalewise.launch import store as store_module
from scalewise.launch.store import SocketStore, serve_store

SECONDS = 30.0


@pytest.fixture
def served() -> Iterator[SocketStore]:
    with serve_store(SECONDS) as store:
        yield store


def test_operations_are_those_of_torchs_stores(served: SocketStore) -> None:
    reference = HashStore()
    for store in (served, PrefixStore("outer", PrefixStore("inner", served)), reference):
        assert operations(store) == operations(HashStore())


def operations(store: Store) -> list[object]:
    store.set("name", "value")
    return [
        bytes(store.get("name")),
        store.check(["name"]),
        store.check(["name", "other"]),
        store.add("count", 2),
        store.add("count", 3),
        bytes(store.get("count")),
        bytes(store.compare_set("new", "", "first")),
        bytes(store.compare_set("new", "", "second")),
        bytes(store.compare_set("new", "first", "third")),
        store.delete_key("name"),
        store.delete_key("name"),
        store.check(["name"]),
    ]


def test_a_wait_ends_with_the_key_and_blocks_no_other_thread(served: SocketStore) -> None:
    values: list[bytes] = []
    waiting = threading.Thread(target=lambda: values.append(served.get("late")))
    waiting.start()
    other = SocketStore(served.path, SECONDS)
    other.set("early", "1")
    assert served.get("early") == b"1"
    other.set("late", b"2")
    waiting.join(SECONDS)
    other.release()
    assert values == [b"2"]


def test_a_key_that_nobody_writes_times_out(served: SocketStore) -> None:
    with pytest.raises(dist.DistStoreError, match=r"scalewise store timed out: no missing after 0\.01 s"):
        served.wait(["missing"], timedelta(seconds=0.01))


def test_a_store_that_has_ended_is_reported() -> None:
    with serve_store(SECONDS) as store:
        store.set("key", "value")
    with pytest.raises(dist.DistNetworkError, match="scalewise store: connection closed"):
        store.get("key")
    assert not Path(store.path).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_cannot_connect(served: SocketStore) -> None:
    if not (stranger := os.fork()):
        os.setgroups([])
        os.setuid(65534)
        try:
            socket.socket(socket.AF_UNIX).connect(served.path)
        except PermissionError:
            os._exit(77)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]) == 77


def test_the_kernel_names_the_user_of_a_connection(served: SocketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "peer_user", lambda _: os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(SECONDS)
        stranger.connect(served.path)
        assert stranger.recv(1) == b""
