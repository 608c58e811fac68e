"""Accuracy after training: the rank that computes it keeps reporting, so that it does not count as hung."""

from __future__ import annotations

from collections import Counter

import pytest

import scalewise
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.strategies.registry import strategy_of
from scalewise.training.results import Report, Request
from scalewise.training.tasks import train_task
from tests.conftest import SessionOf

SLOW = "tests.training.models:slow_to_predict"


@pytest.mark.parametrize("strategy", ["mirrored", "layers", "tensor", "parameter-server", "parameter-server-async"])
def test_a_rank_reports_between_batches_of_the_accuracy(strategy: str, session_of: SessionOf) -> None:
    request = Request(SLOW, strategy_of(strategy), Settings(4, epochs=1), DataRequest(samples=16))
    reports_after_training: Counter[int] = Counter()

    def on_report(rank: int, report: Report) -> None:
        reports_after_training[rank] += report.steps_done == report.steps == 4

    outcomes = session_of(2, request.strategy).run(train_task, request, on_report=on_report)
    assert sum(outcome.accuracy is not None for outcome in outcomes) == 1
    evaluator = next(rank for rank, outcome in enumerate(outcomes) if outcome.accuracy is not None)
    assert reports_after_training[evaluator] >= 4


@pytest.mark.slow
def test_an_evaluation_longer_than_the_timeout_does_not_fail_the_run() -> None:
    result = scalewise.train(
        SLOW, strategy="mirrored", devices=2, device_kind="cpu", batch=4, epochs=1, samples=48, timeout_seconds=3
    )
    assert result.accuracy is not None
