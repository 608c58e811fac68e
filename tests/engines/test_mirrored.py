"""A trace shows which gradients are all-reduced during backward."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.strategies.registry import strategy_of
from scalewise.training.results import Outcome, Request
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf

pytestmark = [
    pytest.mark.serial,  # depends on timing
    pytest.mark.skipif(DEVICE_KIND != "cpu", reason="recorded on CPU ranks only"),
]
WORKLOAD = "synthetic:parameters=600000,flops=2000000"


def _trained(strategy: str, traced: bool, session_of: SessionOf) -> list[Outcome]:
    settings = Settings(8, None, 12, traced=traced)
    request = Request(WORKLOAD, strategy_of(strategy), settings, DataRequest(samples=32))
    outcomes: list[Outcome] = session_of(2).run(train_task, request)
    return outcomes


@pytest.mark.parametrize("strategy", ["mirrored:bucket_MB=0.5", "ring:bucket_MB=0.5"])
def test_buckets_are_reduced_during_backward(strategy: str, session_of: SessionOf) -> None:
    plain = _trained(strategy, False, session_of)
    traced = _trained(strategy, True, session_of)
    assert traced[0].losses == plain[0].losses
    for untraced, outcome in zip(plain, traced, strict=True):
        assert {span.lane for span in untraced.spans} == {"compute"}
        reductions = [span for span in outcome.spans if span.lane == "network"]
        backwards = {span.step: span for span in outcome.spans if span.phase == "backward"}
        assert {span.step for span in reductions} == set(backwards)
        early = [span for span in reductions if span.start < backwards[span.step].start + backwards[span.step].seconds]
        assert len(early) > len(backwards) / 2
        for step in backwards:
            ends = [(span.start, span.start + span.seconds) for span in reductions if span.step == step]
            assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(ends))
