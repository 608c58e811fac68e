"""Tests of the cause that the launcher reports; ranks are replaced by pipes that send prepared messages."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Timer
from typing import Any

import pytest

from scalewise.core.errors import Location, RankFailed, UsersCodeFailed
from scalewise.launch import task_results
from scalewise.launch.placement import RankGroup
from scalewise.launch.rank_failure import from_exception
from scalewise.launch.task_results import ResultCollector
from scalewise.launch.worker import WAITS_FOR_OTHERS

LINE = Location("model.py", 5)


class Ranks:
    """Replacement of an agent whose ranks never end and show a stack unless stopped."""

    def __init__(self, count: int) -> None:
        pipes = [Pipe() for _ in range(count)]
        self.launcher_ends = [launcher_end for launcher_end, _ in pipes]
        self.rank_ends = [rank_end for _, rank_end in pipes]
        self.ended, self._alive = Pipe()
        self.stopped: set[int] = set()
        self.codes: dict[int, int] = {}

    def exits(self) -> dict[int, int]:
        return self.codes

    def has_exited_normally(self, rank: int) -> bool:
        return self.codes.get(rank) == 0

    def end(self, codes: dict[int, int]) -> None:
        """Report, as the agent does, that all ranks have ended."""
        self.codes = codes
        self._alive.close()

    def signal(self, _number: int, rank: int) -> None:
        if rank not in self.stopped:
            self.rank_ends[rank]._send(b"File train.py, line 3")  # type: ignore[attr-defined]

    def send(self, rank: int, *message: Any) -> None:
        self.rank_ends[rank].send_bytes(pickle.dumps(message))

    def close(self) -> None:
        ends: list[Connection] = [*self.launcher_ends, *self.rank_ends, self.ended, self._alive]
        for end in ends:
            end.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    fake_ranks = Ranks(3)
    yield fake_ranks
    fake_ranks.close()


def gather(ranks: Ranks, expected_seconds: float | None = None) -> None:
    collector = ResultCollector(ranks, ranks.launcher_ends, 0.1, RankGroup(3))  # type: ignore[arg-type]
    if expected_seconds:
        collector.set_deadline(expected_seconds)
    collector.gather()


def test_a_rank_that_does_not_join_is_named(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_results, "MIN_JOIN_SECONDS", 0.2)
    for rank in (0, 2):
        ranks.send(rank, "report", WAITS_FOR_OTHERS)
    with pytest.raises(RankFailed, match=r"^rank 1 did not answer within 0.2 s$"):
        gather(ranks, 60.0)


def test_a_stopped_rank_is_named_among_silent_ranks(ranks: Ranks) -> None:
    ranks.stopped = {2}
    ranks.send(0, "result", None)
    with pytest.raises(RankFailed, match=r"^rank 2 did not answer within 0.1 s$") as failed:
        gather(ranks)
    assert "line 3" in failed.value.details


def test_the_exit_code_of_a_dead_rank_may_arrive_late(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel of a killed rank closes at once; on a busy machine its exit code is known seconds later."""
    monkeypatch.setattr(task_results, "_SETTLE_SYMPTOM_SECONDS", 0.01)
    ranks.rank_ends[1].close()
    agent = Timer(0.3, ranks.end, [{1: -signal.SIGKILL}])
    agent.start()
    with pytest.raises(RankFailed, match=r"^rank 1 was killed \(signal 9\)$"):
        gather(ranks)
    agent.join()


def test_an_error_of_the_users_code_on_one_rank_is_a_rank_failure(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_results, "_SETTLE_SYMPTOM_SECONDS", 0.1)
    ranks.send(1, "failure", from_exception(1, UsersCodeFailed("KeyError: 'weights'", LINE)))
    with pytest.raises(RankFailed) as failed:
        gather(ranks)
    failure = failed.value.failure
    assert (failure.kind, failure.who, failure.cause) == ("error", "rank 1", "KeyError: 'weights'")
    assert failure.location == LINE


def test_an_error_of_the_users_code_on_all_ranks_is_bad_input(ranks: Ranks) -> None:
    for rank in range(3):
        ranks.send(rank, "failure", from_exception(rank, UsersCodeFailed("KeyError: 'weights'", LINE)))
    with pytest.raises(UsersCodeFailed, match=r"^model.py:5: KeyError: 'weights'$"):
        gather(ranks)


def test_ranks_may_start_far_apart_whatever_the_timeout(ranks: Ranks) -> None:
    """On a busy machine a rank can start seconds after another, even if a hung rank fails the run after a moment."""
    collector = ResultCollector(ranks, ranks.launcher_ends, 0.05, RankGroup(3))  # type: ignore[arg-type]
    collector.allow_start(60.0)
    ranks.send(0, "result", "first")
    ranks.send(1, "result", "second")
    late = Timer(0.5, ranks.send, (2, "result", "third"))
    late.start()
    assert collector.gather() == ["first", "second", "third"]
    late.join()
