"""Properties of strategies that other packages use."""

from __future__ import annotations

import pytest

from scalewise.strategies.registry import STRATEGIES, strategy_of


def test_single_is_the_only_reference() -> None:
    assert [name for name, kind in STRATEGIES.items() if kind.reference] == ["single"]


@pytest.mark.parametrize(
    ("text", "asynchronous"),
    [("parameter-server", False), ("parameter-server-async", True), ("parameter-server-async:max_staleness=0", False)],
)
def test_asynchronous_only_with_staleness(text: str, asynchronous: bool) -> None:
    assert strategy_of(text).asynchronous is asynchronous


@pytest.mark.parametrize(
    ("text", "devices", "microbatches", "statistics"),
    [
        ("mirrored", 1, None, ""),
        ("mirrored", 2, None, "one device's samples"),
        ("layers", 2, None, ""),
        ("tensor", 2, None, ""),
        ("pipeline", 2, 1, ""),
        ("pipeline", 2, 4, "one micro-batch"),
        ("hybrid:stages=2", 4, 4, "one micro-batch"),
        ("hybrid:tensor=2", 4, None, "the samples of one group of devices"),
        ("hybrid:tensor=2", 2, None, ""),
    ],
)
def test_part_of_the_batch_that_batch_norm_uses(
    text: str, devices: int, microbatches: int | None, statistics: str
) -> None:
    assert strategy_of(text).seen_at_once(devices, microbatches) == statistics


@pytest.mark.parametrize(
    ("text", "devices", "twin"),
    [("mirrored", 2, None), ("hybrid:stages=2", 2, "pipeline"), ("hybrid", 2, "tensor"), ("hybrid", 4, None)],
)
def test_a_hybrid_of_one_group_equals_another_strategy(text: str, devices: int, twin: str | None) -> None:
    assert strategy_of(text).twin(devices) == twin
