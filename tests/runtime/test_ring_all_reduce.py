"""Tests of the ring all-reduce between real ranks: sums, bytes and background operation."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from threading import Thread
from time import monotonic

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.core.errors import RunFailed
from scalewise.hardware.collectives import MIB, ring_sends, sent_bytes
from scalewise.launch.rank_failure import from_exception
from scalewise.launch.worker import Worker
from scalewise.runtime.byte_counters import StepTraffic, available, snapshot
from scalewise.runtime.ring_all_reduce import (
    PointToPointRing,
    RingAllReduce,
    _accept,
    _Endpoint,
    _refuse_unreachable,
    ring_hook,
)
from tests.conftest import DEVICE_KIND, SessionOf

LENGTHS = [0, 1, 3, 7, 1000, 1_000_000]


def part(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    """Return the input of a rank: integers, whose sum is exact in any order."""
    return torch.arange(length).add(rank * 31).remainder(257).sub(128).mul(rank + 1).to(dtype)


def ring_of(worker: Worker, piece_bytes: int, point_to_point: bool) -> RingAllReduce:
    """Create a ring; `point_to_point` uses the implementation for NCCL on gloo."""
    ring = RingAllReduce(piece_bytes=piece_bytes)
    if point_to_point and worker.device.type == "cpu":
        ring._reduce = PointToPointRing(dist.group.WORLD, piece_bytes)  # type: ignore[arg-type]
    return ring


def wrong_sums(worker: Worker, piece_bytes: int, point_to_point: bool) -> list[tuple[str, int]]:
    """Sum tensors of every length and dtype three times in a row; return those with wrong results."""
    ring = ring_of(worker, piece_bytes, point_to_point)
    wrong = []
    for dtype in (torch.float32, torch.float64):
        for length in LENGTHS:
            flat = part(worker.rank, length, dtype).to(worker.device)
            expected = sum(
                (part(rank, length, dtype) for rank in range(worker.world)), torch.zeros(length, dtype=dtype)
            )
            for _ in range(3):
                ring(flat)
                if not torch.equal(flat.cpu(), expected):
                    wrong.append((str(dtype), length))
                expected *= worker.world
    return wrong


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("piece_bytes", [2 * MIB, 100_000])
def test_sums_are_correct(session_of: SessionOf, ranks: int, piece_bytes: int) -> None:
    assert session_of(ranks).run(wrong_sums, piece_bytes, False) == [[]] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("piece_bytes", [2 * MIB, 100_000])
def test_sums_of_the_nccl_implementation_are_correct(session_of: SessionOf, ranks: int, piece_bytes: int) -> None:
    assert session_of(ranks).run(wrong_sums, piece_bytes, True) == [[]] * ranks


def tiny_pieces(worker: Worker, point_to_point: bool) -> list[list[float]]:
    """Return the distinct results of 300 calls, because the arrival order of pieces varies."""
    ring = ring_of(worker, 4, point_to_point)
    sums = set()
    for _ in range(300):
        flat = torch.arange(5.0, device=worker.device) * 10**worker.rank
        ring(flat)
        sums.add(tuple(flat.tolist()))
    return [list(values) for values in sorted(sums)]


@pytest.mark.parametrize("point_to_point", [False, True])
def test_pieces_of_one_or_no_element(session_of: SessionOf, point_to_point: bool) -> None:
    assert session_of(3).run(tiny_pieces, point_to_point) == [[[0.0, 111.0, 222.0, 333.0, 444.0]]] * 3


def reduce_often(worker: Worker, size_bytes: int, piece_bytes: int, times: int) -> StepTraffic:
    ring = RingAllReduce(piece_bytes=piece_bytes)
    flat = torch.zeros(size_bytes // 4, device=worker.device)
    traffic = StepTraffic()
    traffic.start(dist.barrier)
    for _ in range(times):
        ring(flat)
    traffic.stop(times, dist.barrier)
    return traffic


@pytest.mark.skipif(not available(), reason="the kernel does not count bytes by connection")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("size_bytes", [4, 4096, 1_000_004, 9_000_000])
def test_sent_bytes_equal_the_plan(session_of: SessionOf, ranks: int, size_bytes: int) -> None:
    session = session_of(ranks)
    if session.placement.device_kind == "cuda":
        pytest.skip("NCCL uses no sockets inside a machine")
    planned = ring_sends(ranks, size_bytes, 0.5)
    for rank, traffic in enumerate(session.run(reduce_often, size_bytes, MIB // 2, 3)):
        assert traffic.sent_bytes == 3 * sent_bytes(planned, rank)


def gradients_of_ddp(worker: Worker) -> tuple[list[Tensor], list[Tensor]]:
    """Return gradients of two steps of DDP with the hook, and the gradients summed without it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 5)).double()
    model = model.to(worker.device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.005, gradient_as_bucket_view=True)
    ddp.register_comm_hook(RingAllReduce(piece_bytes=1000), ring_hook)
    inputs = torch.randn(2, 8, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(worker.rank))
    hooked = []
    for batch in inputs.to(worker.device):
        ddp.zero_grad()
        ddp(batch).square().sum().backward()
        hooked += [parameter.grad.cpu().clone() for parameter in model.parameters() if parameter.grad is not None]
    summed = []
    for batch in inputs.to(worker.device):
        for gradient in torch.autograd.grad(model(batch).square().sum(), list(model.parameters())):
            dist.all_reduce(gradient)
            summed.append(gradient.cpu())
    return hooked, summed


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_ddp_hook_sums_gradients(session_of: SessionOf, ranks: int) -> None:
    for hooked, summed in session_of(ranks).run(gradients_of_ddp):
        assert len(hooked) == 12
        torch.testing.assert_close(hooked, summed, rtol=1e-12, atol=1e-12)


def failure_in_background(worker: Worker) -> list[str]:
    """Return the errors of a sparse tensor and of a dense tensor after it."""
    ring, errors = RingAllReduce(), []
    futures = [ring.begin(torch.zeros(8).to_sparse()), ring.begin(torch.zeros(8, device=worker.device))]
    for future in futures:
        try:
            future.wait()
        except (RuntimeError, ValueError) as error:
            errors.append(str(error))
    return errors


def test_errors_in_the_background_are_raised_by_the_future(session_of: SessionOf) -> None:
    for errors in session_of(2).run(failure_in_background):
        assert len(errors) == 2
        assert all("does not support sparse gradients" in error for error in errors)


def several_in_background(worker: Worker) -> list[float]:
    ring = RingAllReduce(piece_bytes=4096)
    flats = [torch.full((length,), float(worker.rank + 1), device=worker.device) for length in (1, 5000, 3, 70_000, 2)]
    futures = [ring.begin(flat) for flat in flats]
    return [float(future.wait().mean()) for future in reversed(futures)]


def test_several_tensors_can_be_summed_in_the_background(session_of: SessionOf) -> None:
    assert session_of(3).run(several_in_background) == [[6.0] * 5] * 3


pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="NCCL has its own connections")


def without_the_last(worker: Worker, how: str) -> tuple[str, str]:
    """Return the error message and failure kind of rank 0 when the last rank does not take part."""
    ring = RingAllReduce()
    assert ring._connections is not None
    ring._connections.timeout_seconds = 0.2
    outcome = ("", "")
    if worker.rank == 0:
        try:
            ring.begin(torch.ones(8, device=worker.device)).wait()
        except RuntimeError as error:
            outcome = str(error).partition("\n")[0], from_exception(0, error).kind
    elif how == "gone":
        ring.close()
    dist.barrier()
    return outcome


def test_a_silent_neighbour_is_named(session_of: SessionOf) -> None:
    message, kind = session_of(2).run(without_the_last, "silent")[0]
    assert message.endswith("scalewise ring timed out: nothing from rank 1 in 0.2 s")
    assert kind == "timeout"


def test_a_closed_neighbour_is_named(session_of: SessionOf) -> None:
    message, kind = session_of(2).run(without_the_last, "gone")[0]
    assert message.endswith("scalewise ring: connection closed by rank 1")
    assert kind == "lost"


def sockets_after(_worker: Worker) -> tuple[int, int]:
    """Return the number of additional connections while a ring is open and after it is closed."""
    before = len(snapshot().connections)
    ring = RingAllReduce()
    opened = len(snapshot().connections) - before
    dist.barrier()
    ring.close()
    return opened, len(snapshot().connections) - before


def test_a_ring_opens_two_connections_and_closes_them(session_of: SessionOf) -> None:
    assert session_of(3).run(sockets_after) == [(2, 0)] * 3


def test_a_connection_with_a_wrong_password_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        strangers = [socket.create_connection(address) for _ in range(2)]
        strangers[0].sendall(b"x" * 16)
        strangers[1].close()
        neighbour = socket.create_connection(address)
        Thread(target=neighbour.sendall, args=(b"p" * 16,)).start()
        with _accept(listener, b"p" * 16, monotonic() + 5) as accepted:
            assert accepted.getpeername() == neighbour.getsockname()
        assert strangers[0].recv(1) == b""
        strangers[0].close()
        neighbour.close()


def test_silent_strangers_delay_nobody() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        address = listener.getsockname()
        for _ in range(300):  # more than may wait at the same time
            stack.enter_context(socket.create_connection(address))
        neighbour = stack.enter_context(socket.create_connection(address))
        neighbour.sendall(b"p" * 16)
        with _accept(listener, b"p" * 16, monotonic() + 4) as accepted:  # reading one after the other takes 5 s each
            assert accepted.getpeername() == neighbour.getsockname()


def test_a_missing_previous_rank_is_reported() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(RuntimeError, match="the previous rank did not connect"),
    ):
        _accept(listener, b"p" * 16, monotonic() + 0.05)


def test_a_host_that_others_cannot_reach_is_refused() -> None:
    public, loopback = _Endpoint("one", "10.0.0.1", 1, b""), _Endpoint("two", "127.0.1.1", 1, b"")
    _refuse_unreachable([loopback, loopback])
    with pytest.raises(RunFailed, match=r"host two has the address 127\.0\.1\.1.*GLOO_SOCKET_IFNAME"):
        _refuse_unreachable([public, loopback])
