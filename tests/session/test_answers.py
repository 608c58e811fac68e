"""Whom the launcher names when answers stay out; the ranks are ends of pipes that say what ranks say."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

from scalewise.errors import UsersCodeFailed
from scalewise.session import answers
from scalewise.session.answers import Answers
from scalewise.session.crew import Crew
from scalewise.session.failure import RankFailed, from_exception
from scalewise.session.worker import WAITS_FOR_OTHERS


class Ranks:
    """In place of an agent: alive for ever, and able to show a stack unless stopped."""

    def __init__(self, count: int) -> None:
        pipes = [Pipe() for _ in range(count)]
        self.ours, self.theirs = [ours for ours, _ in pipes], [theirs for _, theirs in pipes]
        self.ended, self._alive = Pipe()
        self.stopped: set[int] = set()

    def exits(self) -> dict[int, int]:
        return {}

    def signal(self, _number: int, rank: int) -> None:
        if rank not in self.stopped:
            self.theirs[rank]._send(b"File train.py, line 3")  # type: ignore[attr-defined]

    def say(self, rank: int, *what: Any) -> None:
        self.theirs[rank].send_bytes(pickle.dumps(what))

    def close(self) -> None:
        ends: list[Connection] = [*self.ours, *self.theirs, self.ended, self._alive]
        for end in ends:
            end.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks(3)
    yield made
    made.close()


def gather(ranks: Ranks, expected_seconds: float | None = None) -> None:
    heard = Answers(ranks, ranks.ours, 0.1, Crew(3))  # type: ignore[arg-type]
    if expected_seconds:
        heard.expect(expected_seconds)
    heard.gather()


def test_who_does_not_come_to_the_meeting_is_named(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LEAST_MEETING_SECONDS", 0.2)
    for rank in (0, 2):
        ranks.say(rank, "report", WAITS_FOR_OTHERS)
    with pytest.raises(RankFailed, match=r"^rank 1 did not answer within 0.2 s$"):
        gather(ranks, 60.0)


def test_of_several_silent_ranks_the_stopped_one_is_named(ranks: Ranks) -> None:
    ranks.stopped = {2}
    ranks.say(0, "result", None)
    with pytest.raises(RankFailed, match=r"^rank 2 did not answer within 0.1 s$") as failed:
        gather(ranks)
    assert "line 3" in failed.value.details


def test_what_the_users_code_raises_on_one_rank_alone_is_that_ranks_failure(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_SETTLE_SYMPTOM_SECONDS", 0.1)
    ranks.say(1, "failure", from_exception(1, UsersCodeFailed("model.py:5: KeyError: 'weights'")))
    with pytest.raises(RankFailed, match=r"^rank 1 failed: model.py:5: KeyError: 'weights'$"):
        gather(ranks)


def test_what_it_raises_on_all_ranks_is_bad_input(ranks: Ranks) -> None:
    for rank in range(3):
        ranks.say(rank, "failure", from_exception(rank, UsersCodeFailed("model.py:5: KeyError: 'weights'")))
    with pytest.raises(UsersCodeFailed, match=r"^model.py:5: KeyError: 'weights'$"):
        gather(ranks)
