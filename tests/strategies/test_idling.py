"""Idle time of devices, according to the plan."""

from __future__ import annotations

import pytest

from scalewise.strategies.plan import Footprint, Section
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.stage_plan import idle_shares


def model(*flops: int) -> Footprint:
    sections = tuple(Section(f"{at}", count, 400, 0, (10,), (10,)) for at, count in enumerate(flops))
    return Footprint((400,) * len(flops), 4, 4, 4, sections=sections)


def test_balanced_stages_without_micro_batches_work_one_at_a_time() -> None:
    plan = strategy_of("layers").plan(model(100, 100, 100), 3, 24)
    assert idle_shares(plan, 3) == pytest.approx([2 / 3] * 3)


def test_a_larger_stage_is_idle_for_less_time() -> None:
    plan = strategy_of("layers").plan(model(300, 100), 2, 24)
    assert idle_shares(plan, 2) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("microbatches", [2, 8])
def test_micro_batches_reduce_idle_time(microbatches: int) -> None:
    plan = strategy_of(f"pipeline:microbatches={microbatches}").plan(model(100, 100), 2, 24)
    assert idle_shares(plan, 2) == pytest.approx([1 / (microbatches + 1)] * 2)
