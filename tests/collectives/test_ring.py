"""The ring's schedule as tables, and what it sends."""

from __future__ import annotations

import pytest

from scalewise.collectives.ring import MIB, Schedule, piece_sizes, ring_sends, schedule_of
from scalewise.collectives.send import Send, busiest_bytes, received_bytes, sent_bytes, total_bytes


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


def test_empty_pieces_do_not_travel() -> None:
    schedule = schedule_of(4, 0, 2, 4, MIB)
    assert schedule.sizes == (0, 1, 0, 1)
    assert schedule.sent == ((), (3,), (), (1,), (), (3,))
    assert schedule.received == ((3,), (), (1,), (), (3,), ())
    assert schedule.window == 1


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_sum_visits_every_rank_and_then_reaches_every_rank(ranks: int) -> None:
    schedules = [schedule_of(ranks, rank, 100, 4, 24) for rank in range(ranks)]
    terms = {(rank, piece): {rank} for rank in range(ranks) for piece in range(len(schedules[0].sizes))}
    for step in range(2 * (ranks - 1)):
        arriving = {
            ((rank + 1) % ranks, piece): terms[rank, piece]
            for rank, schedule in enumerate(schedules)
            for piece in schedule.sent[step]
        }
        for place, arrived in arriving.items():
            if step < ranks - 1:
                assert not terms[place] & arrived, "nothing is added twice"
            terms[place] = terms[place] | arrived if step < ranks - 1 else arrived
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
def test_pieces(ranks: int, elements: int, piece_bytes: int, sizes: list[int]) -> None:
    assert piece_sizes(ranks, elements, 4, piece_bytes) == tuple(sizes)


def test_wider_elements_make_as_many_pieces() -> None:
    assert len(piece_sizes(4, 1_000_000, 8, MIB)) == len(piece_sizes(4, 2_000_000, 4, MIB)) == 8


def test_sends_of_two_ranks() -> None:
    assert ring_sends(2, 4000, 1.0) == (
        Send(0, 1, 2000),
        Send(1, 0, 2000),
        Send(0, 1, 2000, after=(1,)),
        Send(1, 0, 2000, after=(0,)),
    )


def test_a_piece_waits_for_what_brought_it_and_for_nothing_else() -> None:
    sends = ring_sends(2, 4 * MIB, 1.0)
    assert [(send.source, send.bytes, send.after) for send in sends] == [
        (0, MIB, ()), (0, MIB, ()), (1, MIB, ()), (1, MIB, ()),
        (0, MIB, (2,)), (0, MIB, (3,)), (1, MIB, (0,)), (1, MIB, (1,)),
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_every_rank_sends_and_receives_less_than_twice_the_tensor(ranks: int) -> None:
    size = 48 * ranks * 1000
    sends = ring_sends(ranks, size, 2.0)
    for rank in range(ranks):
        assert sent_bytes(sends, rank) == received_bytes(sends, rank) == 2 * size * (ranks - 1) // ranks
    assert busiest_bytes(sends) == 2 * total_bytes(sends) // ranks


def test_smaller_pieces_are_more_sends_of_the_same_bytes() -> None:
    few, many = (ring_sends(4, 16 * MIB, piece_MB) for piece_MB in (2.0, 0.5))
    assert total_bytes(many) == total_bytes(few)
    assert (len(few), len(many)) == (6 * 4 * 2, 6 * 4 * 8)


@pytest.mark.parametrize(("ranks", "bytes"), [(1, 4000), (4, 0)])
def test_nothing_to_send(ranks: int, bytes: int) -> None:
    assert ring_sends(ranks, bytes, 1.0) == ()
