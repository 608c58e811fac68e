"""Errors of `scalewise validate`, table by table, against their targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.published.gpu_steps import load_data_parallel
from scalewise.published.tables import load_small
from scalewise.reporting.page_cells import FITTED, study_fit
from scalewise.strategies.plan import Footprint
from scalewise.validation.multi_gpu import (
    catalogue_table,
    data_parallel_tables,
    fit_without,
    fitted_table,
)
from scalewise.validation.scores import Cell, Choices, Table, choices_of, decisions_of, errors_of, threshold_decisions
from scalewise.validation.small_tables import Stages, small_tables, stevens_tables


def cell(measured: float, predicted: float, alone: float = 10.0) -> Cell:
    return Cell("x", measured, predicted, predicted * 0.9, predicted * 1.1, alone, {"naive": 2 * measured})


def test_errors_are_percent_of_the_measured_time() -> None:
    errors = errors_of([cell(10, 11), cell(10, 9.5), cell(10, 10.2)])
    assert (errors.median, errors.p90, errors.worst) == pytest.approx((5, 10, 10))


def test_decisions_count_found_missed_and_false_chokes() -> None:
    decisions = decisions_of([cell(12, 13), cell(12, 8), cell(8, 12), cell(8, 8)])
    assert (decisions.right, decisions.chokes, decisions.predicted_chokes, decisions.alarms) == (2, 2, 1, 2)
    assert (decisions.precision_percent, decisions.recall_percent) == (50, 50)


def test_a_choice_is_right_if_it_is_nearly_as_fast_as_the_best() -> None:
    def rival(measured: float, predicted: float, rivals: str) -> Cell:
        return replace(cell(measured, predicted), rivals=rivals)

    right = [rival(10, 9, "a"), rival(9.9, 12, "a")]
    wrong = [rival(10, 9, "b"), rival(5, 12, "b")]
    alone = [rival(10, 9, "c"), cell(1, 1)]
    assert choices_of([*right, *wrong, *alone]) == Choices(right=1, of=2)


def test_without_chokes_there_is_no_recall() -> None:
    assert decisions_of([cell(8, 8)]).recall_percent is None


def test_a_table_as_json_has_the_documented_keys() -> None:
    table = Table("x", [cell(10, 11)], "no", "nothing", "somewhere")
    document = table.to_json()
    assert document["baselines"] == {"naive": {"median_error_percent": 100.0}}
    assert {
        "name", "cells", "in_sample", "median_error_percent", "p90_error_percent", "worst_error_percent",
        "decisions_right_percent", "baselines",
    } <= set(document)  # fmt: skip
    assert (document["cells"], document["decisions_right_percent"]) == (1, 100.0)


def test_errors_on_the_study() -> None:
    profiled, below = stevens_tables()
    errors = errors_of(profiled.cells)
    assert len(profiled.cells) == 59  # 60 less the one that was fitted
    assert len(below.cells) == 12
    assert errors.median < 2.5
    assert errors.p90 < 6
    assert errors.worst < 20
    decisions = decisions_of(profiled.cells)
    assert (decisions.chokes, decisions.predicted_chokes, decisions.alarms) == (29, 29, 29)


def test_intervals_below_the_profiled_batches_contain_every_measurement() -> None:
    _, below = stevens_tables()
    assert errors_of(below.cells).worst < 25
    assert all(cell.inside for cell in below.cells)


def test_the_fitted_cell_of_the_study_is_not_scored() -> None:
    assert study_fit().GBps == pytest.approx(2.4, rel=0.03)
    assert not [cell for cell in stevens_tables()[0].cells if cell.label == "{} {} GPUs batch {}".format(*FITTED)]


def test_errors_on_the_small_tables() -> None:
    [table] = small_tables()
    assert errors_of(table.cells).median < 10
    assert errors_of(table.parts["ddp on v100"]).median < 3
    assert len(table.parts["pipelines on p40"]) == 6
    assert errors_of(table.parts["pipelines on p40"]).median < 10


def test_published_stages_add_up_to_the_model() -> None:
    pipelines = [row for row in load_small() if row.stages]
    assert len(pipelines) == 6
    for row in pipelines:
        assert len(row.stages) == row.devices
        assert sum(row.stages) == pytest.approx(1, abs=0.002)


def test_a_stage_computes_its_share_of_the_model() -> None:
    footprint = Footprint((4,), input_bytes=1, target_bytes=1, output_bytes=1)
    for shares, expected in (((), [1, 1]), ((0.75, 0.25), [1.5, 0.5])):
        plan = Stages(4, shares).plan(footprint, 2, 8)
        done = [sum(operation.share for operation in plan.operations if operation.rank == rank) for rank in (0, 1)]
        assert done == pytest.approx(expected)  # forward and backward


def test_errors_on_tensorflow_are_below_naive_rules() -> None:
    table = catalogue_table()
    errors = errors_of(table.cells)
    assert len(table.cells) == 168
    assert errors.median < 4
    assert errors.p90 < 10
    assert errors.median < min(table.baseline_error(name) for name in table.baselines)


@pytest.mark.slow
def test_errors_and_decisions_on_data_parallel() -> None:
    """No constant is fitted to the scored machine, or two constants to other models on it."""
    others, three_gpus, fitted = data_parallel_tables()
    assert (len(others.cells), len(three_gpus.cells), len(fitted.cells)) == (921, 94, 921)
    assert errors_of(others.cells).median < 12
    assert errors_of(others.cells).p90 < 25
    assert errors_of(fitted.cells).median < 6.5
    for table, recall, precision in ((others, 60, 75), (fitted, 75, 85)):
        slower = threshold_decisions(table.cells)["slower than one device"]
        assert slower.recall_percent is not None
        assert slower.precision_percent is not None
        assert slower.recall_percent > recall
        assert slower.precision_percent > precision
        assert_intervals_hold(table)
    assert_intervals_hold(three_gpus)


def test_constants_of_data_parallel_are_not_fitted_to_the_scored_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, rows = "GTX 1080 Ti", load_data_parallel()
    disturbed = tuple(replace(row, seconds=5 * row.seconds) if row.gpu == gpu else row for row in rows)
    expected = fit_without(gpu)
    monkeypatch.setattr("scalewise.validation.multi_gpu.load_data_parallel", lambda: disturbed)
    assert fit_without.__wrapped__(gpu) == expected


def assert_intervals_hold(table: Table) -> None:
    assert 85 < table.inside_percent < 97, table.name
    half = table.inside_low_efficiency_percent
    assert half is not None
    assert half > 80, table.name


def test_intervals_contain_about_90_percent_and_four_fifths_of_the_least_efficient_half() -> None:
    for table in (catalogue_table(), stevens_tables()[0], *small_tables()):
        assert_intervals_hold(table)


def test_errors_on_tensorflow_with_links_fitted_to_other_models() -> None:
    table = fitted_table()
    assert len(table.cells) == 150
    assert errors_of(table.cells).median < 3.5
    assert errors_of(table.cells).worst < 35
    assert_intervals_hold(table)


def test_cells_near_a_threshold_are_counted_apart() -> None:
    def on_two(measured: float, predicted: float) -> Cell:
        return replace(cell(measured, predicted), devices=2)

    decision = threshold_decisions([on_two(12, 13), on_two(12, 8), on_two(8, 12), on_two(10.4, 9), on_two(5, 5)])
    slower = decision["slower than one device"]
    assert (slower.cells, slower.measured, slower.foreseen, slower.alarms) == (4, 2, 1, 2)
    assert (slower.near, slower.near_right) == (1, 0)
    assert decision["below 70% efficiency"].measured == 4  # all but the cell of five seconds
    assert threshold_decisions([cell(12, 13)]) == {}


def test_coverage_is_also_given_for_the_least_efficient_half() -> None:
    cells = [replace(cell(10, 10), devices=2), replace(cell(20, 10), devices=2)]
    assert Table("x", cells, "no", "nothing", "somewhere").inside_low_efficiency_percent == 0
    assert Table("x", cells, "no", "nothing", "somewhere").inside_percent == 50
