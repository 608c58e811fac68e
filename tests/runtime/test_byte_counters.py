"""Tests of the kernel's byte counters with loopback connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from scalewise.runtime.byte_counters import Flow, available, snapshot

pytestmark = pytest.mark.skipif(not available(), reason="the kernel does not count bytes by connection")


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with closing(near), closing(far):
        yield near, far


def move(source: socket.socket, target: socket.socket, size_bytes: int) -> None:
    remaining = size_bytes
    while remaining:
        piece = min(remaining, 60_000)
        source.sendall(bytes(piece))
        remaining -= piece
        while piece:
            piece -= len(target.recv(piece))


def test_payload_bytes_are_counted_in_both_directions() -> None:
    with connected() as (near, far):
        move(near, far, 5000)
        before = snapshot()
        move(near, far, 1_000_003)
        move(far, near, 17)
        traffic = snapshot() - before
        assert traffic.by_peer[far.getsockname()] == Flow(1_000_003, 17)
        assert traffic.by_peer[near.getsockname()] == Flow(17, 1_000_003)
        # Both ends belong to this process.
        assert (traffic.sent_bytes, traffic.received_bytes) == (1_000_020, 1_000_020)


def test_a_new_connection_counts_from_zero() -> None:
    before = snapshot()
    with connected() as (near, far):
        move(near, far, 4096)
        assert (snapshot() - before).by_peer[far.getsockname()] == Flow(4096, 0)


def test_nothing_sent_is_no_traffic() -> None:
    with connected() as (near, far):
        move(near, far, 4096)
        before = snapshot()
        traffic = snapshot() - before
        assert (traffic.sent_bytes, traffic.received_bytes) == (0, 0)


def test_connections_of_the_store_are_left_out() -> None:
    with connected() as (near, far):
        move(near, far, 4096)
        ends = {(near.getsockname(), far.getsockname()), (far.getsockname(), near.getsockname())}
        assert ends <= set(snapshot().connections)
        assert not ends & set(snapshot(except_port=far.getsockname()[1]).connections)


def test_listening_and_datagram_sockets_are_not_connections() -> None:
    before = snapshot().connections
    with socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM):
        assert set(snapshot().connections) == set(before)


def test_the_snapshot_leaves_the_connections_open() -> None:
    with connected() as (near, far):
        snapshot()
        move(near, far, 1)
