"""Micro-batches that the plan chooses: many where stages are heavy, few where beginning is, and what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.plan import Footprint, Section
from scalewise.strategies.filling import Shape, filling_of
from scalewise.strategies.schedules import schedule_of
from scalewise.strategies.step_length import Pace, StepLength
from scalewise.strategies.strategy import Backend

HEAVY = Section("heavy", 10**9, 1000, 1000, (1000,), (1000,), operations=10)
"""20 ms of a core for every sample."""
LIGHT = replace(HEAVY, flops=1000, kept_bytes=0)
WIDE = replace(LIGHT, flops=10**6, parameter_bytes=10**8)
"""Whose weights take longer to read than a few samples to compute."""


def number_of(
    section: Section, on_gpu: bool = False, backend: Backend = "gloo", microbatches: int | None = None
) -> int:
    footprint = Footprint((), 0, 0, 0, sections=(section,) * 8, on_gpu=on_gpu, microbatches=microbatches)
    return filling_of(Shape("1f1b"), footprint, 2, 64, backend).number


def test_stages_that_compute_much_are_filled_and_others_are_not() -> None:
    assert number_of(HEAVY) == 16
    assert number_of(LIGHT) == number_of(WIDE) == 2


def test_a_gpu_is_given_larger_pieces_than_a_core() -> None:
    assert number_of(HEAVY, True, "nccl") < number_of(HEAVY)
    assert number_of(replace(HEAVY, flops=10**11), True, "nccl") == 16


def test_as_many_as_asked_for_or_as_the_engine_chose() -> None:
    assert number_of(HEAVY, microbatches=5) == 5
    assert filling_of(Shape("1f1b", given=4), Footprint((), 0, 0, 0, microbatches=5), 1, 64, "gloo").number == 4


def test_of_a_model_without_sections_four_per_device() -> None:
    assert filling_of(Shape("gpipe"), Footprint((), 0, 0, 0), 1, 64, "gloo").number == 4


@pytest.mark.parametrize(("room_bytes", "number"), [(None, 2), (10**6, 2), (150_000, 3), (120_000, 4), (1, 16)])
def test_a_limit_of_memory_comes_before_time(room_bytes: int | None, number: int) -> None:
    """1f1b: the first of two stages keeps two micro-batches of 4 sections each, 1 KB a sample."""
    light = replace(LIGHT, kept_bytes=1000, passed_bytes=(1,), returned_bytes=(1,))
    footprint = Footprint((), 0, 0, 0, sections=(light,) * 8, room_bytes=room_bytes)
    assert filling_of(Shape("1f1b"), footprint, 2, 64, "gloo").number == number


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("number", [4, 8])
def test_a_step_is_as_long_as_its_work_and_its_idle_time(devices: int, number: int) -> None:
    """Of stages that only compute, 1 forward and 2 back: (m + p - 1) of both."""
    sections = [Section(f"{at}", 1, 0, 0, (0,), (0,)) for at in range(devices)]
    length = StepLength(sections, [range(at, at + 1) for at in range(devices)], 1, Pace(0, 0, 0))
    assert length.of(schedule_of("gpipe", devices, 1, number)) == 3 * (number + devices - 1)
    assert length.of(schedule_of("1f1b", devices, 1, number)) == 3 * (number + devices - 1)


def test_messages_and_what_is_computed_again_take_time() -> None:
    sections = [Section(f"{at}", 1, 0, 0, (5,), (5,)) for at in range(2)]
    ranges, schedule = [range(1), range(1, 2)], schedule_of("gpipe", 2, 1, 1)
    assert StepLength(sections, ranges, 1, Pace(0, 7, 2)).of(schedule) == 3 + 3 + 2 * (7 + 2 * 5)
    assert StepLength(sections, ranges, 1, Pace(0, 0, 0), recompute=True).of(schedule) == 4 + 4
