"""Layers that do not learn: nobody changes them, and what is sent and held is planned."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from scalewise.data.data import DataRequest
from scalewise.engines.engine import Place
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.verbs.outcomes import bytes_per_step, memory_of
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.test_contract import HERE

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
WITHIN = 0.10


def _request(kind: str, strategy: str, path: Path | None = None) -> Request:
    settings = Settings(8, None, 8, checkpoint=path)
    return Request(f"tests.tiny_frozen:{kind}", strategy_of(strategy), settings, DataRequest(samples=32))


@pytest.mark.parametrize(
    ("kind", "strategy", "ranks"),
    [
        *((kind, "sharded", 4) for kind in ("first", "middle", "never", "few_rows")),
        *((kind, "layers", 2) for kind in ("middle", "never")),
        ("middle", "pipeline", 2),
        ("first", "tensor", 2),
        ("middle", "hybrid:tensor=2", 4),
        ("first", "hybrid:stages=2", 4),
        ("middle", "hybrid:stages=2", 4),
    ],
)
def test_a_layer_that_does_not_learn_stays_and_what_is_sent_and_held_is_planned(
    kind: str, strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf
) -> None:
    alone, spread = tmp_path / "alone.safetensors", tmp_path / "spread.safetensors"
    train_on(Place(0, 1, HERE), _request(kind, "single", alone), lambda _: None)
    request = _request(kind, strategy, spread)
    session = session_of(ranks)
    outcomes: list[Outcome] = session.run(train_task, request)
    expected, found = load_file(alone), load_file(spread)
    for name in (name for name in expected if name.startswith("model/")):
        assert_close(found[name], expected[name], rtol=0, atol=1e-4, msg=name)
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == pytest.approx(sent.planned, rel=0.01)
    memory = memory_of(request, session.placement, outcomes)
    # Of one rank or another gloo's thread may hold a piece longer than needed, or give one back unheard.
    middle = min if strategy == "sharded" else median
    measured = [peak for peak in memory.measured_by_rank if peak is not None]
    assert len(measured) == ranks
    assert middle(memory.planned_by_rank) == pytest.approx(middle(measured), rel=WITHIN)
