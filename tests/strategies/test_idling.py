"""Who waits how long, by the plan."""

from __future__ import annotations

import pytest

from scalewise.plan import Footprint, Section
from scalewise.strategies.idling import idle_shares
from scalewise.strategies.registry import strategy_of


def model(*flops: int) -> Footprint:
    sections = tuple(Section(f"{at}", each, 400, 0, (10,), (10,)) for at, each in enumerate(flops))
    return Footprint((400,) * len(flops), 4, 4, 4, sections=sections)


def test_of_balanced_stages_one_works_at_a_time() -> None:
    plan = strategy_of("layers").plan(model(100, 100, 100), 3, 24)
    assert idle_shares(plan, 3) == pytest.approx([2 / 3] * 3)


def test_a_larger_stage_idles_less() -> None:
    plan = strategy_of("layers").plan(model(300, 100), 2, 24)
    assert idle_shares(plan, 2) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("microbatches", [2, 8])
def test_micro_batches_shorten_the_waiting(microbatches: int) -> None:
    plan = strategy_of(f"pipeline:microbatches={microbatches}").plan(model(100, 100), 2, 24)
    assert idle_shares(plan, 2) == pytest.approx([1 / (microbatches + 1)] * 2)
