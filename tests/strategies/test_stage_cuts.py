"""Where models are cut: balanced stages, then little to hold and to send; names; refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scalewise.errors import UserError
from scalewise.plan import Section
from scalewise.strategies.layers import Layers
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.stage_cuts import ADAM_COPIES, MODEL_COPIES, SLACK, costs_of, stage_ranges


def sections(*flops: int, passed: tuple[int, ...] = (), held: tuple[int, ...] = ()) -> list[Section]:
    return [
        Section(
            name=f"layer{number}",
            flops=each,
            parameter_bytes=held[number] if held else 1,
            kept_bytes=0,
            passed_bytes=(passed[number] if passed else 1,),
            returned_bytes=(1,),
        )
        for number, each in enumerate(flops)
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
def test_the_slowest_stage_is_as_quick_as_can_be(flops: tuple[int, ...], stages: int, expected: list[range]) -> None:
    assert stage_ranges(sections(*flops), [8] * stages) == expected


def test_where_cuts_are_equally_quick_the_one_that_sends_less_is_taken() -> None:
    assert stage_ranges(sections(100, 1, 100, passed=(50, 10, 50)), [8, 8]) == [range(2), range(2, 3)]
    assert stage_ranges(sections(100, 1, 100, passed=(10, 50, 50)), [8, 8]) == [range(1), range(1, 3)]


def test_where_cuts_are_equally_quick_memory_counts_before_what_is_sent() -> None:
    model = sections(100, 1, 100, passed=(50, 10, 50), held=(100, 100, 10))
    assert stage_ranges(model, [8, 8]) == [range(1), range(1, 3)]


def test_activations_count_by_the_sample() -> None:
    model = [
        Section("a", 0, 0, 100, (1,), (1,)),
        Section("b", 0, 0, 100, (1,), (1,)),
        Section("c", 0, 0, 200, (1,), (1,)),
    ]
    assert stage_ranges(model, [8, 8]) == [range(2), range(2, 3)]


@given(some.lists(some.integers(1, 50), min_size=1, max_size=8), some.integers(1, 4))
def test_no_cut_is_much_quicker(flops: list[int], stages: int) -> None:
    model = sections(*flops)
    if stages > len(model):
        return
    found = stage_ranges(model, [1] * stages)
    assert [at for stage in found for at in stage] == list(range(len(model)))

    def slowest(stages: list[range]) -> float:
        return max(sum(costs_of(model)[at] for at in stage) for stage in stages)

    every = ([0, *bounds, len(model)] for bounds in combinations(range(1, len(model)), stages - 1))
    best = min(slowest([range(*pair) for pair in pairwise(bounds)]) for bounds in every)
    assert slowest(found) <= SLACK * best


@pytest.mark.parametrize(
    ("room_bytes", "expected"),
    [
        (None, [range(2), range(2, 4)]),
        (64, [range(2), range(2, 4)]),
        (60, [range(1), range(1, 4)]),
        (45, [range(1), range(1, 4)]),
    ],
)
def test_a_limit_comes_before_balance_and_what_fits_nowhere_is_cut_by_memory(
    room_bytes: int | None, expected: list[range]
) -> None:
    """Four copies of 10, 6, 3 and 3 bytes of weights: 64 and 24 where work is balanced, 40 and 48 at least."""
    model = sections(1, 1, 1, 1, held=(10, 6, 3, 3))
    assert stage_ranges(model, [8, 8], room_bytes=room_bytes) == expected


@given(
    some.lists(some.tuples(some.integers(1, 50), some.integers(0, 20)), min_size=1, max_size=8),
    some.integers(1, 4),
    some.integers(0, 400),
)
def test_what_can_fit_fits_and_no_other_that_does_is_much_quicker(
    layers: list[tuple[int, int]], stages: int, room_bytes: int
) -> None:
    flops, held = zip(*layers, strict=True)
    model = sections(*flops, held=held)
    if stages > len(model):
        return

    def most(cut: list[range], sizes: Sequence[float]) -> float:
        return max(sum(sizes[at] for at in stage) for stage in cut)

    found = stage_ranges(model, [1] * stages, room_bytes=room_bytes)
    copies = [(MODEL_COPIES + ADAM_COPIES) * each for each in held]
    bounds = ([0, *each, len(model)] for each in combinations(range(1, len(model)), stages - 1))
    every = [[range(*pair) for pair in pairwise(each)] for each in bounds]
    least = max(room_bytes, min(most(cut, copies) for cut in every))
    fitting = [cut for cut in every if most(cut, copies) <= least]
    assert most(found, copies) <= least
    assert most(found, flops) <= SLACK * min(most(cut, flops) for cut in fitting) + 1e-9


def test_what_a_stage_has_under_way_and_the_optimizer_decide_what_fits() -> None:
    """Of a pipeline the first stage keeps two micro-batches: 2 * 40 beside weights of 8; the second one."""
    model = [Section(f"{at}", 1, 8, 40, (1,), (1,)) for at in range(4)]
    even, uneven = [range(2), range(2, 4)], [range(1), range(1, 4)]
    assert stage_ranges(model, [2, 1], room_bytes=2 * (4 * 8 + 2 * 40)) == even
    assert stage_ranges(model, [2, 1], room_bytes=2 * (4 * 8 + 2 * 40) - 1) == uneven
    assert stage_ranges(model, [2, 1], room_bytes=2 * (4 * 8 + 2 * 40) - 1, state_copies=1) == even
    assert stage_ranges(model, [4, 4], room_bytes=3 * (4 * 8 + 40)) == even  # which fits nowhere, and is the least


def test_a_section_that_fits_only_where_no_stage_is_left_empty_is_cut_by_memory() -> None:
    """The first would need least on the last of three stages, which leaves nothing for those before it."""
    model = [Section("large", 1, 1, 40, (1,), (1,)), *(Section(f"{at}", 1, 1, 1, (1,), (1,)) for at in range(2))]
    assert stage_ranges(model, [3, 2, 1], room_bytes=50) == [range(1), range(1, 2), range(2, 3)]


def test_a_limit_that_can_be_kept_is_kept_where_later_stages_hold_less() -> None:
    """It takes an uneven cut: the greediest first stages leave too much for the last."""
    sizes = [(7, 7), (3, 3), (20, 30), (7, 46), (19, 16)]
    model = [Section(str(at), 1, weights, kept, (1,), (1,)) for at, (weights, kept) in enumerate(sizes)]
    samples = [4, 3, 2, 1]
    stages = stage_ranges(model, samples, room_bytes=166)
    held = [
        sum((MODEL_COPIES + ADAM_COPIES) * sizes[at][0] + count * sizes[at][1] for at in stage)
        for stage, count in zip(stages, samples, strict=True)
    ]
    assert max(held) <= 166


def test_measured_seconds_count_before_flops() -> None:
    model = [replace(each, seconds=seconds) for each, seconds in zip(sections(9, 1, 1), (1.0, 1.0, 2.0), strict=True)]
    assert stage_ranges(sections(9, 1, 1), [8, 8]) == [range(1), range(1, 3)]
    assert stage_ranges(model, [8, 8]) == [range(2), range(2, 3)]


def test_named_modules_begin_the_stages_after_the_first() -> None:
    assert stage_ranges(sections(1, 1, 1, 1), [8] * 3, "layer3+layer1") == [range(1), range(1, 3), range(3, 4)]


@pytest.mark.parametrize(
    ("stages", "cut", "sentence"),
    [
        (4, "", "4 stages are too many for this model: it can be cut into 3 at most (layer0, layer1, layer2)"),
        (2, "layer9", "unknown place to cut 'layer9' (did you mean 'layer2'?); valid: layer1, layer2"),
        (2, "layer0", "'layer0' begins the model"),
        (2, "layer1+layer2", "cut=layer1+layer2 makes 3 stages, and these devices need 2; name 1 place, or"),
    ],
)
def test_what_cannot_be_cut_is_refused(stages: int, cut: str, sentence: str) -> None:
    with pytest.raises(UserError) as answer:
        stage_ranges(sections(1, 1, 1), [8] * stages, cut)
    assert sentence in str(answer.value)


@pytest.mark.parametrize("strategy", [Layers, Pipeline])
def test_a_place_is_named_once(strategy: type[Layers | Pipeline]) -> None:
    with pytest.raises(UserError, match=r"cut=b\+a\+b names 'b' 2 times; name each place once"):
        strategy(cut="b+a+b")


def test_a_model_of_which_nothing_is_known_is_not_cut() -> None:
    with pytest.raises(UserError, match="says nowhere that it can be cut"):
        stage_ranges([], [8, 8])
