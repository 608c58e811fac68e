"""What holds for the sends of every backend and operation, and the figures of textbooks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scalewise.collectives import BACKENDS, Send, busiest_bytes, received_bytes, sends, sent_bytes, total_bytes
from scalewise.errors import UserError

MB = 1_000_000
EVERY = [(backend, operation) for backend, operations in BACKENDS.items() for operation in operations]


@pytest.mark.parametrize(("backend", "operation"), EVERY)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("size_bytes", [4, 4096, 48 * MB])
def test_a_send_waits_only_for_earlier_ones_that_reach_its_source(
    backend: str, operation: str, ranks: int, size_bytes: int
) -> None:
    made = sends(backend, operation, ranks, size_bytes, root=1)
    assert made
    for position, send in enumerate(made):
        assert send.source != send.target
        assert {send.source, send.target} <= set(range(ranks))
        assert send.bytes > 0
        assert all(earlier < position and made[earlier].target == send.source for earlier in send.after)


@pytest.mark.parametrize(("backend", "operation"), EVERY)
def test_one_rank_or_nothing_to_send_sends_nothing(backend: str, operation: str) -> None:
    assert sends(backend, operation, 1, MB) == ()
    assert sends(backend, operation, 4, 0) == ()


@pytest.mark.parametrize(("backend", "operation"), EVERY)
def test_what_all_ranks_send_is_what_all_receive(backend: str, operation: str) -> None:
    made = sends(backend, operation, 4, 48 * MB)
    assert sum(sent_bytes(made, rank) for rank in range(4)) == total_bytes(made)
    assert sum(received_bytes(made, rank) for rank in range(4)) == total_bytes(made)
    assert max(sent_bytes(made, rank) + received_bytes(made, rank) for rank in range(4)) == busiest_bytes(made)


@pytest.mark.parametrize(
    ("backend", "operation", "total", "busiest"),
    # In tensors of 48 MB on four ranks; the busiest rank counts both ways.
    [
        ("gloo", "broadcast", 3, 2),  # a tree: the root sends twice
        ("gloo", "all_reduce", 6, 3),
        ("gloo", "reduce_scatter", 6, 3),  # all-reduce bytes
        ("gloo", "all_gather", 3, 1.5),
        ("gloo", "gather", 0.75, 0.75),
        ("gloo", "scatter", 0.75, 0.75),
        ("gloo", "send", 1, 1),
        ("nccl", "broadcast", 3, 2),  # a chain: those in the middle receive and send
        ("nccl", "reduce", 3, 2),
        ("nccl", "all_reduce", 6, 3),
        ("nccl", "reduce_scatter", 3, 1.5),
        ("nccl", "all_gather", 3, 1.5),
        ("nccl", "gather", 0.75, 0.75),
        ("nccl", "scatter", 0.75, 0.75),
        ("nccl", "send", 1, 1),
    ],
)
def test_bytes_of_a_large_tensor_on_four_ranks(backend: str, operation: str, total: float, busiest: float) -> None:
    made = sends(backend, operation, 4, 48 * MB)
    assert total_bytes(made) == pytest.approx(total * 48 * MB, rel=1e-3)
    assert busiest_bytes(made) == pytest.approx(busiest * 48 * MB, rel=1e-3)


def test_the_sums_of_two_sends() -> None:
    made = [Send(0, 1, 100, reply_bytes=10), Send(1, 2, 50)]
    assert total_bytes(made) == 160
    assert [sent_bytes(made, rank) for rank in range(3)] == [100, 60, 0]
    assert [received_bytes(made, rank) for rank in range(3)] == [10, 100, 50]
    assert busiest_bytes(made) == 160
    assert busiest_bytes([]) == 0


def test_unknown_names_are_answered_with_the_valid_ones() -> None:
    with pytest.raises(UserError, match="unknown backend 'mpi'; valid: gloo, nccl"):
        sends("mpi", "send", 2, 4)
    with pytest.raises(UserError, match=r"unknown operation 'allreduce' \(did you mean 'all_reduce'\?\)"):
        sends("gloo", "allreduce", 2, 4)


def test_torch_stays_out() -> None:
    check = "import sys, scalewise.collectives; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
