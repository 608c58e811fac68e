"""Schedules as literal tables, and the same as torch's; how batches become micro-batches."""

from __future__ import annotations

import pytest

from scalewise.errors import UserError
from scalewise.strategies.microbatches import choices_for, given_microbatches, without_costs
from scalewise.strategies.schedules import Kind, most_under_way, schedule_of


def table(kind: Kind, devices: int, stages_each: int, microbatches: int) -> list[str]:
    """'0F1': stage 0, forward, micro-batch 1."""
    return [
        " ".join(f"{work.stage}{work.phase[0].upper()}{work.microbatch}" for work in works)
        for works in schedule_of(kind, devices, stages_each, microbatches)
    ]


def test_gpipe_goes_all_forward_then_all_back() -> None:
    assert table("gpipe", 2, 1, 3) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]


def test_1f1b_goes_back_as_soon_as_it_can() -> None:
    assert table("1f1b", 2, 1, 4) == [
        "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
    ]


def test_interleaved_takes_rounds_through_both_of_its_stages() -> None:
    assert table("interleaved", 2, 2, 2) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def test_micro_batches_under_way() -> None:
    assert most_under_way(schedule_of("gpipe", 2, 1, 3), 2) == [3, 3]
    assert most_under_way(schedule_of("1f1b", 3, 1, 6), 3) == [3, 2, 1]
    assert most_under_way(schedule_of("interleaved", 2, 2, 4), 4) == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("batch", "devices", "kind", "expected"),
    [
        (32, 2, "1f1b", [2, 3, 4, 5, 8, 11, 16]),
        (12, 2, "1f1b", [2, 3, 4, 6, 7, 12]),
        (100, 4, "1f1b", [4, 5, 6, 10, 13, 20, 25]),
        (2, 4, "1f1b", [4]),
        (2, 4, "gpipe", [2]),
        (1, 1, "1f1b", [1]),
        (5, 2, "interleaved", [2, 3, 4]),
        (1, 2, "interleaved", [1]),
    ],
)
def test_a_few_numbers_of_micro_batches_are_tried(batch: int, devices: int, kind: Kind, expected: list[int]) -> None:
    assert [each.number for each in choices_for(batch, devices, kind)] == expected


@pytest.mark.parametrize(
    ("batch", "devices", "kind", "expected"),
    [
        (32, 2, "1f1b", 8),
        (13, 2, "1f1b", 7),
        (100, 4, "1f1b", 10),
        (2, 4, "gpipe", 2),
        (32, 4, "interleaved", 16),
    ],
)
def test_of_an_unknown_model_the_batch_is_cut_into_many_parts_and_padded_little(
    batch: int, devices: int, kind: Kind, expected: int
) -> None:
    assert without_costs(batch, devices, kind).number == expected


def test_a_batch_that_does_not_divide_is_padded() -> None:
    assert given_microbatches(7, 13, 2, "1f1b") == (7, 2)
    assert given_microbatches(4, 12, 2, "1f1b") == (4, 3)


@pytest.mark.parametrize(
    ("batch", "devices", "kind", "expected"),
    [
        (32, 2, "1f1b", (8, 4)),
        (8, 2, "1f1b", (4, 2)),
        (13, 2, "1f1b", (7, 2)),
        (4, 4, "1f1b", (4, 2)),  # which needs four; two of them only pad
        (4, 4, "gpipe", (2, 2)),
        (5, 2, "interleaved", (3, 2)),
        (1, 2, "gpipe", (1, 1)),
    ],
)
def test_a_model_that_normalises_over_samples_gets_two_at_a_time(
    batch: int, devices: int, kind: Kind, expected: tuple[int, int]
) -> None:
    assert without_costs(batch, devices, kind, norms_batches=True) == expected


@pytest.mark.parametrize(
    ("given", "batch", "devices", "kind", "sentence"),
    [
        (9, 8, 2, "1f1b", "microbatches=9 is more than the batch of 8"),
        (2, 8, 4, "1f1b", "microbatches=2 is too few: schedule=1f1b needs one for each of 4 devices"),
        (5, 8, 2, "interleaved", "microbatches=5 leaves 1 over"),
    ],
)
def test_numbers_that_a_schedule_cannot_take_are_refused(
    given: int, batch: int, devices: int, kind: Kind, sentence: str
) -> None:
    with pytest.raises(UserError) as answer:
        given_microbatches(given, batch, devices, kind)
    assert sentence in str(answer.value)
