"""Properties of the sends of every backend and operation, and the known numbers of bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.collectives import (
    BACKENDS,
    MIB,
    Schedule,
    Send,
    busiest_bytes,
    piece_sizes,
    received_bytes,
    ring_sends,
    schedule_of,
    sends,
    sent_bytes,
    total_bytes,
)

MB = 1_000_000
OPERATIONS = [(backend, operation) for backend, operations in BACKENDS.items() for operation in operations]


@pytest.mark.parametrize(("backend", "operation"), OPERATIONS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("size_bytes", [4, 4096, 48 * MB])
def test_sends_wait_only_for_earlier_sends_to_their_source(
    backend: str, operation: str, ranks: int, size_bytes: int
) -> None:
    planned = sends(backend, operation, ranks, size_bytes, root=1)
    assert planned
    for position, send in enumerate(planned):
        assert send.source != send.target
        assert {send.source, send.target} <= set(range(ranks))
        assert send.bytes > 0
        assert all(earlier < position and planned[earlier].target == send.source for earlier in send.after)


@pytest.mark.parametrize(("backend", "operation"), OPERATIONS)
def test_no_sends_for_one_rank_or_zero_bytes(backend: str, operation: str) -> None:
    assert sends(backend, operation, 1, MB) == ()
    assert sends(backend, operation, 4, 0) == ()


@pytest.mark.parametrize(("backend", "operation"), OPERATIONS)
def test_bytes_sent_equal_bytes_received(backend: str, operation: str) -> None:
    planned = sends(backend, operation, 4, 48 * MB)
    assert sum(sent_bytes(planned, rank) for rank in range(4)) == total_bytes(planned)
    assert sum(received_bytes(planned, rank) for rank in range(4)) == total_bytes(planned)
    busiest = max(sent_bytes(planned, rank) + received_bytes(planned, rank) for rank in range(4))
    assert busiest == busiest_bytes(planned)


@pytest.mark.parametrize(
    ("backend", "operation", "total", "busiest"),
    # In multiples of the tensor of 48 MB, on four ranks. `busiest` counts both directions.
    [
        ("gloo", "broadcast", 3, 2),  # a tree: the root sends twice
        ("gloo", "all_reduce", 6, 3),
        ("gloo", "reduce_scatter", 6, 3),  # the bytes of an all-reduce
        ("gloo", "all_gather", 3, 1.5),
        ("gloo", "gather", 0.75, 0.75),
        ("gloo", "scatter", 0.75, 0.75),
        ("gloo", "send", 1, 1),
        ("nccl", "broadcast", 3, 2),  # a chain: the ranks in the middle receive and send
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
    planned = sends(backend, operation, 4, 48 * MB)
    assert total_bytes(planned) == pytest.approx(total * 48 * MB, rel=1e-3)
    assert busiest_bytes(planned) == pytest.approx(busiest * 48 * MB, rel=1e-3)


def test_sums_of_two_sends() -> None:
    planned = [Send(0, 1, 100, reply_bytes=10), Send(1, 2, 50)]
    assert total_bytes(planned) == 160
    assert [sent_bytes(planned, rank) for rank in range(3)] == [100, 60, 0]
    assert [received_bytes(planned, rank) for rank in range(3)] == [10, 100, 50]
    assert busiest_bytes(planned) == 160
    assert busiest_bytes([]) == 0


def test_error_for_unknown_names_lists_the_valid_ones() -> None:
    with pytest.raises(UserError, match="unknown backend 'mpi'; valid: gloo, nccl"):
        sends("mpi", "send", 2, 4)
    with pytest.raises(UserError, match=r"unknown operation 'allreduce' \(did you mean 'all_reduce'\?\)"):
        sends("gloo", "allreduce", 2, 4)


def test_collectives_do_not_import_torch() -> None:
    script = "import sys, scalewise.hardware.collectives; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("rank", "sent", "received"),
    [
        # reduce-scatter: steps 0 to 2; all-gather: steps 3 to 5
        (0, [0, 3, 2, 1, 0, 3], [3, 2, 1, 0, 3, 2]),
        (1, [1, 0, 3, 2, 1, 0], [0, 3, 2, 1, 0, 3]),
        (2, [2, 1, 0, 3, 2, 1], [1, 0, 3, 2, 1, 0]),
        (3, [3, 2, 1, 0, 3, 2], [2, 1, 0, 3, 2, 1]),
    ],
)
def test_chunks_of_four_ranks(rank: int, sent: list[int], received: list[int]) -> None:
    schedule = schedule_of(4, rank, 400, 4, MIB)
    assert schedule.sent == tuple((chunk,) for chunk in sent)
    assert schedule.received == tuple((chunk,) for chunk in received)


@pytest.mark.parametrize(
    ("rank", "schedule"),
    [
        (0, Schedule((5,) * 6, sent=((0, 1, 2), (3, 4, 5)), received=((3, 4, 5), (0, 1, 2)))),
        (1, Schedule((5,) * 6, sent=((3, 4, 5), (0, 1, 2)), received=((0, 1, 2), (3, 4, 5)))),
    ],
)
def test_two_ranks_exchange_halves_in_pieces(rank: int, schedule: Schedule) -> None:
    assert schedule_of(2, rank, 30, 4, 20) == schedule
    assert schedule.window == 3


def test_empty_pieces_are_not_sent() -> None:
    schedule = schedule_of(4, 0, 2, 4, MIB)
    assert schedule.sizes == (0, 1, 0, 1)
    assert schedule.sent == ((), (3,), (), (1,), (), (3,))
    assert schedule.received == ((3,), (), (1,), (), (3,), ())
    assert schedule.window == 1


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_rank_gets_the_sum_over_all_ranks(ranks: int) -> None:
    schedules = [schedule_of(ranks, rank, 100, 4, 24) for rank in range(ranks)]
    terms = {(rank, piece): {rank} for rank in range(ranks) for piece in range(len(schedules[0].sizes))}
    for step in range(2 * (ranks - 1)):
        received = {
            ((rank + 1) % ranks, piece): terms[rank, piece]
            for rank, schedule in enumerate(schedules)
            for piece in schedule.sent[step]
        }
        for place, new_terms in received.items():
            if step < ranks - 1:
                assert not terms[place] & new_terms, "no rank's values are added twice"
            terms[place] = terms[place] | new_terms if step < ranks - 1 else new_terms
    assert set(map(frozenset, terms.values())) == {frozenset(range(ranks))}


@pytest.mark.parametrize(
    ("ranks", "elements", "piece_bytes", "sizes"),
    [
        (2, 12, 12, [3, 3, 3, 3]),
        (2, 13, 12, [2, 2, 2, 2, 2, 3]),
        (3, 9, 1000, [3, 3, 3]),
        (4, 10, 1000, [2, 3, 2, 3]),
        (4, 1, 1000, [0, 0, 0, 1]),
        (4, 3, 1000, [0, 1, 1, 1]),
        (2, 3, 1, [0, 1, 1, 1]),
        (2, 0, 1000, [0, 0]),
        (1, 5, 1000, [5]),
    ],
)
def test_piece_sizes(ranks: int, elements: int, piece_bytes: int, sizes: list[int]) -> None:
    assert piece_sizes(ranks, elements, 4, piece_bytes) == tuple(sizes)


def test_number_of_pieces_depends_on_bytes() -> None:
    assert len(piece_sizes(4, 1_000_000, 8, MIB)) == len(piece_sizes(4, 2_000_000, 4, MIB)) == 8


def test_sends_of_two_ranks() -> None:
    assert ring_sends(2, 4000, 1.0) == (
        Send(0, 1, 2000),
        Send(1, 0, 2000),
        Send(0, 1, 2000, after=(1,)),
        Send(1, 0, 2000, after=(0,)),
    )


def test_a_piece_waits_only_for_its_own_arrival() -> None:
    sends = ring_sends(2, 4 * MIB, 1.0)
    assert [(send.source, send.bytes, send.after) for send in sends] == [
        (0, MIB, ()), (0, MIB, ()), (1, MIB, ()), (1, MIB, ()),
        (0, MIB, (2,)), (0, MIB, (3,)), (1, MIB, (0,)), (1, MIB, (1,)),
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_every_rank_sends_and_receives_2_N_minus_1_of_N_tensors(ranks: int) -> None:
    size = 48 * ranks * 1000
    sends = ring_sends(ranks, size, 2.0)
    for rank in range(ranks):
        assert sent_bytes(sends, rank) == received_bytes(sends, rank) == 2 * size * (ranks - 1) // ranks
    assert busiest_bytes(sends) == 2 * total_bytes(sends) // ranks


def test_smaller_pieces_are_more_sends_with_the_same_total() -> None:
    few, many = (ring_sends(4, 16 * MIB, piece_MB) for piece_MB in (2.0, 0.5))
    assert total_bytes(many) == total_bytes(few)
    assert (len(few), len(many)) == (6 * 4 * 2, 6 * 4 * 8)


@pytest.mark.parametrize(("ranks", "bytes"), [(1, 4000), (4, 0)])
def test_the_ring_has_no_sends_for_one_rank_or_zero_bytes(ranks: int, bytes: int) -> None:
    assert ring_sends(ranks, bytes, 1.0) == ()
