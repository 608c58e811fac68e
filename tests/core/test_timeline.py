"""Timelines: the typical step of several, and the compact form that is stored with a measurement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.core.timeline import (
    MOST_SPANS,
    SHOWN_RANKS,
    TICKS,
    Lane,
    RecordedStep,
    Span,
    Timeline,
    recorded_step,
    typical_step,
)


def test_the_typical_step_has_the_median_duration_and_starts_at_0() -> None:
    spans = [Span(rank, "forward", 10.0 * step + rank, 1.0 + step, step=step) for step in (0, 1, 2) for rank in (0, 1)]
    assert typical_step(Timeline(tuple(spans))) == (
        Span(0, "forward", 0.0, 2.0, step=1),
        Span(1, "forward", 0.0, 2.0, step=1),
    )
    near = [replace(span, start=span.start - 0.5 * span.rank) for span in spans]
    assert [span.start for span in typical_step(Timeline(tuple(near)))] == [0.0, 0.5]


def test_a_recorded_step_has_a_lane_per_rank_and_kind() -> None:
    spans = [
        Span(0, "forward", 5.0, 1.0),
        Span(0, "backward", 6.0, 2.0),
        Span(0, "reduce", 8.0, 1.0),
        Span(0, "reduce", 7.0, 2.0, lane="network"),
        Span(1, "forward", 5.0, 4.0),
    ]
    step = recorded_step(Timeline(tuple(spans)))
    assert step == RecordedStep(
        4.0,
        [
            Lane(0, "compute", [("forward", 0, 2500), ("backward", 2500, 5000), ("reduce", 7500, 2500)]),
            Lane(0, "network", [("reduce", 5000, 5000)]),
            Lane(1, "compute", [("forward", 0, 10_000)]),
        ],
    )
    assert recorded_step(Timeline(())) is None


def test_a_recorded_step_is_small_however_many_ranks_and_spans_there_are() -> None:
    phases = ("forward", "send", "backward", "receive")
    spans = [Span(rank, phases[n % 4], n * 1e-3, 1e-3) for rank in range(40) for n in range(300)]
    step = recorded_step(Timeline(tuple(spans)))
    assert step is not None
    assert 0 < sum(len(lane.spans) for lane in step.lanes) <= MOST_SPANS
    assert {lane.rank for lane in step.lanes} == set(range(SHOWN_RANKS))
    assert all(sum(length for _, _, length in lane.spans) == TICKS for lane in step.lanes)  # joined, not dropped


def test_asynchronous_workers_are_recorded_for_three_rounds_of_the_slowest() -> None:
    spans = [Span(0, "forward", 100 + 1.0 * step, 1.0, step=step) for step in range(12)]
    spans += [Span(1, "backward", 101 + 2.0 * step, 2.0, step=step) for step in range(5)]
    step = recorded_step(Timeline(tuple(spans)), asynchronous=True)
    assert step is not None
    assert step.seconds == pytest.approx(6.0)
    assert [(lane.rank, lane.spans[0][0], sum(span[2] for span in lane.spans)) for lane in step.lanes] == [
        (0, "forward", TICKS),
        (1, "backward", TICKS),
    ]


@pytest.mark.parametrize(
    ("seconds", "span", "problem"),
    [
        (0.0, ("forward", 0, 1), "seconds"),
        (1.0, ("dance", 0, 1), "phase 'dance'"),
        (1.0, ("forward", 9_999, 2), "outside"),
        (1.0, ("forward", -1, 2), "outside"),
    ],
)
def test_a_damaged_recorded_step_is_refused(seconds: float, span: tuple[str, int, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RecordedStep(seconds, [Lane(0, "compute", [span])])
