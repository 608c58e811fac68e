"""Automatic choice of micro-batches: many for heavy stages, few where overheads dominate, within the memory limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.hardware.collectives import Backend
from scalewise.strategies.microbatches import Overheads, PipelineOptions, StepTime, filling_of
from scalewise.strategies.plan import Footprint, Section
from scalewise.strategies.stage_plan import schedule_of

HEAVY = Section("heavy", 10**9, 1000, 1000, (1000,), (1000,), operations=10)
"""Takes 20 ms per sample on a core."""
LIGHT = replace(HEAVY, flops=1000, kept_bytes=0)
WIDE = replace(LIGHT, flops=10**6, parameter_bytes=10**8)
"""Reading its weights takes longer than computing a few samples."""


def number_of(
    section: Section, on_gpu: bool = False, backend: Backend = "gloo", microbatches: int | None = None
) -> int:
    footprint = Footprint((), 0, 0, 0, sections=(section,) * 8, on_gpu=on_gpu, microbatches=microbatches)
    return filling_of(PipelineOptions("1f1b"), footprint, 2, 64, backend).number


def test_heavy_stages_get_many_micro_batches_and_light_ones_few() -> None:
    assert number_of(HEAVY) == 16
    assert number_of(LIGHT) == number_of(WIDE) == 2


def test_a_gpu_gets_larger_micro_batches_than_a_core() -> None:
    assert number_of(HEAVY, True, "nccl") < number_of(HEAVY)
    assert number_of(replace(HEAVY, flops=10**11), True, "nccl") == 16


def test_a_given_number_or_that_of_the_engine_is_used() -> None:
    assert number_of(HEAVY, microbatches=5) == 5
    assert (
        filling_of(PipelineOptions("1f1b", given=4), Footprint((), 0, 0, 0, microbatches=5), 1, 64, "gloo").number == 4
    )


def test_a_model_without_sections_gets_four_micro_batches_per_device() -> None:
    assert filling_of(PipelineOptions("gpipe"), Footprint((), 0, 0, 0), 1, 64, "gloo").number == 4


@pytest.mark.parametrize(("room_bytes", "number"), [(None, 2), (10**6, 2), (150_000, 3), (120_000, 4), (1, 16)])
def test_a_memory_limit_takes_precedence_over_time(room_bytes: int | None, number: int) -> None:
    """With 1f1b the first of two stages keeps two micro-batches of 4 sections, each 1 kB per sample."""
    light = replace(LIGHT, kept_bytes=1000, passed_bytes=(1,), returned_bytes=(1,))
    footprint = Footprint((), 0, 0, 0, sections=(light,) * 8, room_bytes=room_bytes)
    assert filling_of(PipelineOptions("1f1b"), footprint, 2, 64, "gloo").number == number


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("number", [4, 8])
def test_step_time_includes_the_bubble(devices: int, number: int) -> None:
    """Stages take 1 for forward and 2 for backward of a micro-batch, so a step takes 3 (m + p - 1)."""
    sections = [Section(f"{at}", 1, 0, 0, (0,), (0,)) for at in range(devices)]
    step = StepTime(sections, [range(at, at + 1) for at in range(devices)], 1, Overheads(0, 0, 0))
    assert step.flops(schedule_of("gpipe", devices, 1, number)) == 3 * (number + devices - 1)
    assert step.flops(schedule_of("1f1b", devices, 1, number)) == 3 * (number + devices - 1)


def test_messages_and_recomputation_take_time() -> None:
    sections = [Section(f"{at}", 1, 0, 0, (5,), (5,)) for at in range(2)]
    ranges, schedule = [range(1), range(1, 2)], schedule_of("gpipe", 2, 1, 1)
    assert StepTime(sections, ranges, 1, Overheads(0, 7, 2)).flops(schedule) == 3 + 3 + 2 * (7 + 2 * 5)
    assert StepTime(sections, ranges, 1, Overheads(0, 0, 0), recompute=True).flops(schedule) == 4 + 4
