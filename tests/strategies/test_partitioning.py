"""Partitions into stages: balance, then memory and bytes sent; stages by module name; errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scalewise.core.errors import UserError
from scalewise.strategies.layers import Layers
from scalewise.strategies.partitioning import ADAM_COPIES, MODEL_COPIES, SLACK, costs_of, stage_ranges
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.plan import Section


def sections(*flops: int, passed: tuple[int, ...] = (), held: tuple[int, ...] = ()) -> list[Section]:
    return [
        Section(
            name=f"layer{number}",
            flops=count,
            parameter_bytes=held[number] if held else 1,
            kept_bytes=0,
            passed_bytes=(passed[number] if passed else 1,),
            returned_bytes=(1,),
        )
        for number, count in enumerate(flops)
    ]


@pytest.mark.parametrize(
    ("flops", "stages", "expected"),
    [
        ((1, 1, 1, 1), 2, [range(2), range(2, 4)]),
        ((9, 1, 1, 1), 2, [range(1), range(1, 4)]),
        ((1, 1, 1, 9), 2, [range(3), range(3, 4)]),
        ((4, 4, 4, 4, 4, 4), 3, [range(2), range(2, 4), range(4, 6)]),
        ((5, 0, 0, 5), 4, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        ((3,), 1, [range(1)]),
    ],
)
def test_the_slowest_stage_is_as_fast_as_possible(flops: tuple[int, ...], stages: int, expected: list[range]) -> None:
    assert stage_ranges(sections(*flops), [8] * stages) == expected


def test_among_equally_fast_partitions_the_one_that_sends_less_is_chosen() -> None:
    assert stage_ranges(sections(100, 1, 100, passed=(50, 10, 50)), [8, 8]) == [range(2), range(2, 3)]
    assert stage_ranges(sections(100, 1, 100, passed=(10, 50, 50)), [8, 8]) == [range(1), range(1, 3)]


def test_among_equally_fast_partitions_memory_counts_before_bytes_sent() -> None:
    model = sections(100, 1, 100, passed=(50, 10, 50), held=(100, 100, 10))
    assert stage_ranges(model, [8, 8]) == [range(1), range(1, 3)]


def test_cost_of_activations_is_per_sample() -> None:
    model = [
        Section("a", 0, 0, 100, (1,), (1,)),
        Section("b", 0, 0, 100, (1,), (1,)),
        Section("c", 0, 0, 200, (1,), (1,)),
    ]
    assert stage_ranges(model, [8, 8]) == [range(2), range(2, 3)]


@given(some.lists(some.integers(1, 50), min_size=1, max_size=8), some.integers(1, 4))
def test_no_partition_is_much_faster(flops: list[int], stages: int) -> None:
    model = sections(*flops)
    if stages > len(model):
        return
    ranges = stage_ranges(model, [1] * stages)
    assert [at for stage in ranges for at in stage] == list(range(len(model)))

    def slowest(stages: list[range]) -> float:
        return max(sum(costs_of(model)[at] for at in stage) for stage in stages)

    all_bounds = ([0, *bounds, len(model)] for bounds in combinations(range(1, len(model)), stages - 1))
    best = min(slowest([range(*pair) for pair in pairwise(bounds)]) for bounds in all_bounds)
    assert slowest(ranges) <= SLACK * best


@pytest.mark.parametrize(
    ("room_bytes", "expected"),
    [
        (None, [range(2), range(2, 4)]),
        (64, [range(2), range(2, 4)]),
        (60, [range(1), range(1, 4)]),
        (45, [range(1), range(1, 4)]),
    ],
)
def test_a_memory_limit_takes_precedence_over_balance(room_bytes: int | None, expected: list[range]) -> None:
    """Weights of 10, 6, 3 and 3 bytes count four times. Balanced stages hold 64 and 24 bytes, the smallest 40 and 48.

    A limit that no partition fits gives the partition that needs least.
    """
    model = sections(1, 1, 1, 1, held=(10, 6, 3, 3))
    assert stage_ranges(model, [8, 8], room_bytes=room_bytes) == expected


@given(
    some.lists(some.tuples(some.integers(1, 50), some.integers(0, 20)), min_size=1, max_size=8),
    some.integers(1, 4),
    some.integers(0, 400),
)
def test_stages_fit_if_possible_and_no_fitting_partition_is_much_faster(
    layers: list[tuple[int, int]], stages: int, room_bytes: int
) -> None:
    flops, held = zip(*layers, strict=True)
    model = sections(*flops, held=held)
    if stages > len(model):
        return

    def most(partition: list[range], sizes: Sequence[float]) -> float:
        return max(sum(sizes[at] for at in stage) for stage in partition)

    ranges = stage_ranges(model, [1] * stages, room_bytes=room_bytes)
    copies = [(MODEL_COPIES + ADAM_COPIES) * size for size in held]
    all_bounds = ([0, *bounds, len(model)] for bounds in combinations(range(1, len(model)), stages - 1))
    partitions = [[range(*pair) for pair in pairwise(bounds)] for bounds in all_bounds]
    limit = max(room_bytes, min(most(partition, copies) for partition in partitions))
    fitting = [partition for partition in partitions if most(partition, copies) <= limit]
    assert most(ranges, copies) <= limit
    assert most(ranges, flops) <= SLACK * min(most(partition, flops) for partition in fitting) + 1e-9


def test_micro_batches_in_flight_and_optimizer_state_count_towards_the_limit() -> None:
    """Sections have 8 bytes of weights and 40 of activations; the stages keep two micro-batches and one."""
    model = [Section(f"{at}", 1, 8, 40, (1,), (1,)) for at in range(4)]
    even, uneven = [range(2), range(2, 4)], [range(1), range(1, 4)]
    assert stage_ranges(model, [2, 1], room_bytes=2 * (4 * 8 + 2 * 40)) == even
    assert stage_ranges(model, [2, 1], room_bytes=2 * (4 * 8 + 2 * 40) - 1) == uneven
    assert stage_ranges(model, [2, 1], room_bytes=2 * (4 * 8 + 2 * 40) - 1, state_copies=1) == even
    assert stage_ranges(model, [4, 4], room_bytes=3 * (4 * 8 + 40)) == even  # no partition fits; this one needs least


def test_the_partition_that_needs_least_has_no_empty_stage() -> None:
    """The large section would need least on the last of three stages, but then the first two would be empty."""
    model = [Section("large", 1, 1, 40, (1,), (1,)), *(Section(f"{at}", 1, 1, 1, (1,), (1,)) for at in range(2))]
    assert stage_ranges(model, [3, 2, 1], room_bytes=50) == [range(1), range(1, 2), range(2, 3)]


def test_a_limit_is_kept_if_later_stages_keep_fewer_micro_batches() -> None:
    """Only an uneven partition fits; filling the first stages greedily leaves too much for the last one."""
    sizes = [(7, 7), (3, 3), (20, 30), (7, 46), (19, 16)]
    model = [Section(str(at), 1, weights, kept, (1,), (1,)) for at, (weights, kept) in enumerate(sizes)]
    samples = [4, 3, 2, 1]
    stages = stage_ranges(model, samples, room_bytes=166)
    held = [
        sum((MODEL_COPIES + ADAM_COPIES) * sizes[at][0] + count * sizes[at][1] for at in stage)
        for stage, count in zip(stages, samples, strict=True)
    ]
    assert max(held) <= 166


def test_measured_seconds_take_precedence_over_flops() -> None:
    model = [
        replace(section, seconds=seconds) for section, seconds in zip(sections(9, 1, 1), (1.0, 1.0, 2.0), strict=True)
    ]
    assert stage_ranges(sections(9, 1, 1), [8, 8]) == [range(1), range(1, 3)]
    assert stage_ranges(model, [8, 8]) == [range(2), range(2, 3)]


def test_named_modules_begin_the_stages_after_the_first() -> None:
    assert stage_ranges(sections(1, 1, 1, 1), [8] * 3, "layer3+layer1") == [range(1), range(1, 3), range(3, 4)]


@pytest.mark.parametrize(
    ("stages", "cut", "message"),
    [
        (4, "", "4 stages are too many for this model: it can be split into 3 at most (layer0, layer1, layer2)"),
        (2, "layer9", "unknown module to cut at 'layer9' (did you mean 'layer2'?); valid: layer1, layer2"),
        (2, "layer0", "'layer0' is the first module of the model"),
        (2, "layer1+layer2", "cut=layer1+layer2 makes 3 stages, but the devices need 2; name 1 module, or"),
    ],
)
def test_impossible_partitions_are_refused(stages: int, cut: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        stage_ranges(sections(1, 1, 1), [8] * stages, cut)
    assert message in str(error.value)


@pytest.mark.parametrize("strategy", [Layers, Pipeline])
def test_a_module_is_named_once(strategy: type[Layers | Pipeline]) -> None:
    with pytest.raises(UserError, match=r"cut=b\+a\+b names 'b' 2 times; name each module once"):
        strategy(cut="b+a+b")


def test_a_model_without_sections_is_not_split() -> None:
    with pytest.raises(UserError, match="cannot be split into stages"):
        stage_ranges([], [8, 8])
