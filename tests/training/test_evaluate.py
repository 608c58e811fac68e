"""The accuracy after training: whoever computes it gets on, and says so."""

from __future__ import annotations

from collections import Counter

import pytest

import scalewise
from scalewise.data.data import DataRequest
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.outcome import Report
from scalewise.training.request import Request
from scalewise.training.task import train_task
from tests.conftest import SessionOf

SLOW = "tests.training.models:slow_to_predict"


@pytest.mark.parametrize("strategy", ["mirrored", "layers", "tensor", "parameter-server", "parameter-server-async"])
def test_a_rank_reports_between_batches_of_the_accuracy(strategy: str, session_of: SessionOf) -> None:
    request = Request(SLOW, strategy_of(strategy), Settings(4, epochs=1), DataRequest(samples=16))
    told: Counter[int] = Counter()

    def heard(rank: int, report: Report) -> None:
        told[rank] += report.steps_done == report.steps == 4

    outcomes = session_of(2, request.strategy).run(train_task, request, on_report=heard)
    assert sum(outcome.accuracy is not None for outcome in outcomes) == 1
    evaluator = next(rank for rank, outcome in enumerate(outcomes) if outcome.accuracy is not None)
    assert told[evaluator] >= 4


def test_an_accuracy_that_takes_longer_than_the_timeout_is_waited_for() -> None:
    result = scalewise.train(
        SLOW, strategy="mirrored", devices=2, device_kind="cpu", batch=4, epochs=1, samples=48, timeout_seconds=3
    )
    assert result.accuracy is not None
