"""The connections of a ring: who may come in, and what is said when a neighbour is silent or gone."""

from __future__ import annotations

import socket
from threading import Thread
from time import monotonic

import pytest
import torch
import torch.distributed as dist

from scalewise.errors import RunFailed
from scalewise.session.failure import from_exception
from scalewise.session.worker import Worker
from scalewise.step.neighbours import _admitted, _Invitation, _refuse_unreachable
from scalewise.step.ring import RingAllReduce
from scalewise.tracing.sockets import snapshot
from tests.conftest import DEVICE_KIND, SessionOf

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="NCCL needs no connections of ours")


def without_the_last(worker: Worker, how: str) -> tuple[str, str]:
    """What the first rank says, and the kind of failure that this is, when the last does not take part."""
    ring = RingAllReduce()
    assert ring._neighbours is not None
    ring._neighbours.timeout_seconds = 0.2
    told = ("", "")
    if worker.rank == 0:
        try:
            ring.begin(torch.ones(8, device=worker.device)).wait()
        except RuntimeError as error:
            told = str(error).partition("\n")[0], from_exception(0, error).kind
    elif how == "gone":
        ring.close()
    dist.barrier()
    return told


def test_a_silent_neighbour_is_named_in_time(session_of: SessionOf) -> None:
    said, kind = session_of(2).run(without_the_last, "silent")[0]
    assert said.endswith("scalewise ring timed out: nothing from rank 1 in 0.2 s")
    assert kind == "timeout"


def test_a_neighbour_that_is_gone_is_named(session_of: SessionOf) -> None:
    said, kind = session_of(2).run(without_the_last, "gone")[0]
    assert said.endswith("scalewise ring: connection closed by rank 1")
    assert kind == "lost"


def sockets_after(_worker: Worker) -> tuple[int, int]:
    """How many more are open while a ring is, and after it."""
    before = len(snapshot().connections)
    ring = RingAllReduce()
    opened = len(snapshot().connections) - before
    dist.barrier()
    ring.close()
    return opened, len(snapshot().connections) - before


def test_a_ring_has_two_connections_and_leaves_none(session_of: SessionOf) -> None:
    assert session_of(3).run(sockets_after) == [(2, 0)] * 3


def test_who_does_not_know_the_password_is_turned_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        strangers = [socket.create_connection(address) for _ in range(2)]
        strangers[0].sendall(b"x" * 16)
        strangers[1].close()
        friend = socket.create_connection(address)
        Thread(target=friend.sendall, args=(b"p" * 16,)).start()
        with _admitted(listening, b"p" * 16, monotonic() + 5) as admitted:
            assert admitted.getpeername() == friend.getsockname()
        assert strangers[0].recv(1) == b""
        strangers[0].close()
        friend.close()


def test_nobody_comes() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(RuntimeError, match="the previous rank did not connect"),
    ):
        _admitted(listening, b"p" * 16, monotonic() + 0.05)


def test_a_host_that_others_cannot_reach_is_refused() -> None:
    there, here = _Invitation("one", "10.0.0.1", 1, b""), _Invitation("two", "127.0.1.1", 1, b"")
    _refuse_unreachable([here, here])
    with pytest.raises(RunFailed, match=r"host two gives its address as 127\.0\.1\.1.*GLOO_SOCKET_IFNAME"):
        _refuse_unreachable([there, here])
