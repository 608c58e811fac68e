"""The ring all-reduce between real ranks: sums, bytes, and what happens in the background."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.collectives import sent_bytes
from scalewise.collectives.ring import MIB, ring_sends
from scalewise.session.worker import Worker
from scalewise.step.pair_ring import PairRing
from scalewise.step.ring import RingAllReduce, ring_hook
from scalewise.tracing.sockets import available
from scalewise.tracing.steps import StepTraffic
from tests.conftest import SessionOf

LENGTHS = [0, 1, 3, 7, 1000, 1_000_000]


def part(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    """What a rank brings: whole numbers, whose sums are exact in any order."""
    return torch.arange(length).add(rank * 31).remainder(257).sub(128).mul(rank + 1).to(dtype)


def ring_of(worker: Worker, piece_bytes: int, by_pairs: bool) -> RingAllReduce:
    """`by_pairs` has gloo do what NCCL needs: sends and receives in one batch."""
    ring = RingAllReduce(piece_bytes=piece_bytes)
    if by_pairs and worker.device.type == "cpu":
        ring._reduce = PairRing(dist.group.WORLD, piece_bytes)  # type: ignore[arg-type]
    return ring


def wrong_sums(worker: Worker, piece_bytes: int, by_pairs: bool) -> list[tuple[str, int]]:
    """Every length and type through one ring, several times in a row, each call on the sum of the one before."""
    ring = ring_of(worker, piece_bytes, by_pairs)
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
def test_the_sum_is_torchs(session_of: SessionOf, ranks: int, piece_bytes: int) -> None:
    assert session_of(ranks).run(wrong_sums, piece_bytes, False) == [[]] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("piece_bytes", [2 * MIB, 100_000])
def test_the_form_for_nccl_gives_the_same(session_of: SessionOf, ranks: int, piece_bytes: int) -> None:
    assert session_of(ranks).run(wrong_sums, piece_bytes, True) == [[]] * ranks


def tiny_pieces(worker: Worker, by_pairs: bool) -> list[list[float]]:
    """The sums that came out, each once: of hundreds, because a piece may arrive in time or too early."""
    ring = ring_of(worker, 4, by_pairs)
    sums = set()
    for _ in range(300):
        flat = torch.arange(5.0, device=worker.device) * 10**worker.rank
        ring(flat)
        sums.add(tuple(flat.tolist()))
    return [list(values) for values in sorted(sums)]


@pytest.mark.parametrize("by_pairs", [False, True])
def test_pieces_of_one_element_some_of_them_empty(session_of: SessionOf, by_pairs: bool) -> None:
    assert session_of(3).run(tiny_pieces, by_pairs) == [[[0.0, 111.0, 222.0, 333.0, 444.0]]] * 3


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
def test_it_sends_what_was_planned(session_of: SessionOf, ranks: int, size_bytes: int) -> None:
    session = session_of(ranks)
    if session.placement.device_kind == "cuda":
        pytest.skip("NCCL uses no sockets inside a machine")
    planned = ring_sends(ranks, size_bytes, 0.5)
    for rank, traffic in enumerate(session.run(reduce_often, size_bytes, MIB // 2, 3)):
        assert traffic.sent_bytes == 3 * sent_bytes(planned, rank)


def gradients_of_ddp(worker: Worker) -> tuple[list[Tensor], list[Tensor]]:
    """Two steps through DDP with our hook, several buckets; and the same shards' gradients, summed without it."""
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
def test_as_a_hook_it_gives_ddp_the_sum_of_gradients(session_of: SessionOf, ranks: int) -> None:
    for hooked, summed in session_of(ranks).run(gradients_of_ddp):
        assert len(hooked) == 12
        torch.testing.assert_close(hooked, summed, rtol=1e-12, atol=1e-12)


def failure_in_background(worker: Worker) -> list[str]:
    """Of a tensor that cannot be cut, and of one that could, behind it."""
    ring, said = RingAllReduce(), []
    futures = [ring.begin(torch.zeros(8).to_sparse()), ring.begin(torch.zeros(8, device=worker.device))]
    for future in futures:
        try:
            future.wait()
        except (RuntimeError, ValueError) as error:
            said.append(str(error))
    return said


def test_what_fails_in_the_background_is_raised_by_the_future(session_of: SessionOf) -> None:
    for said in session_of(2).run(failure_in_background):
        assert len(said) == 2
        assert all("sparse gradients cannot go round a ring" in each for each in said)


def many_under_way(worker: Worker) -> list[float]:
    ring = RingAllReduce(piece_bytes=4096)
    flats = [torch.full((length,), float(worker.rank + 1), device=worker.device) for length in (1, 5000, 3, 70_000, 2)]
    futures = [ring.begin(flat) for flat in flats]
    return [float(future.wait().mean()) for future in reversed(futures)]


def test_tensors_handed_over_together_are_summed_one_after_the_other(session_of: SessionOf) -> None:
    assert session_of(3).run(many_under_way) == [[6.0] * 5] * 3
