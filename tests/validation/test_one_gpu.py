"""Scores of one-GPU predictions: the targets that are met, the baselines that are beaten, and what no fold has seen."""

from __future__ import annotations

import pytest

from scalewise.hardware.gpus import gpu_named
from scalewise.predict.gpu_model import gpu_constants, gpu_constants_document
from scalewise.published.gpu_steps import one_gpu_tables, operator_lines
from scalewise.validation.one_gpu import fold_of
from scalewise.validation.one_gpu_scores import TABLES, OneGpuTable, ScoreRow, one_gpu_scores
from scalewise.validation.scores import Cell, Table
from scalewise.validation.validate import ONE_GPU_TABLES


@pytest.fixture(scope="module")
def scores() -> list[OneGpuTable]:
    return one_gpu_scores()


@pytest.fixture(scope="module")
def rows(scores: list[OneGpuTable]) -> list[ScoreRow]:
    return [row for table in scores for row in table.rows]


def row_of(rows: list[ScoreRow], table: str, part: str, quality: str = "specification") -> ScoreRow:
    [row] = [row for row in rows if (row.table, row.part, row.quality) == (table, part, quality)]
    return row


@pytest.mark.parametrize(
    ("table", "part", "quality", "median_percent"),
    [
        ("one_gpu_torchvision", "GPU-bound, fp32, tf32", "specification", 15),
        ("one_gpu_torchvision", "GPU-bound, 16-bit", "specification", 28),
        ("one_gpu_torchvision", "host-bound", "calibrated", 20),
        ("one_gpu_cnn", "fp32, tf32", "specification", 20),
        ("one_gpu_cnn", "16-bit", "specification", 30),
        ("one_gpu_cnn", "fp32, tf32", "calibrated", 10),
        ("one_gpu_cnn", "16-bit", "calibrated", 18),
        ("tensorflow_2017", "fp32, tf32", "specification", 20),
        ("tensorflow_2017", "fp32, tf32", "calibrated", 10),
        ("one_gpu_transformers", "fp32, tf32", "specification", 11),
        ("torchtitan", "16-bit", "specification", 15),
    ],
)
def test_median_errors_stay_below_their_targets(
    rows: list[ScoreRow], table: str, part: str, quality: str, median_percent: float
) -> None:
    assert row_of(rows, table, part, quality).median_error_percent <= median_percent


def test_gpus_that_differ_are_ranked_right(rows: list[ScoreRow]) -> None:
    assert (row_of(rows, "one_gpu_torchvision", "GPU-bound, fp32, tf32").ranked_right_percent or 0) >= 95
    assert (row_of(rows, "one_gpu_torchvision", "GPU-bound, 16-bit").ranked_right_percent or 0) >= 88


def test_every_specification_row_beats_both_baselines(rows: list[ScoreRow]) -> None:
    for row in rows:
        if row.quality == "specification":
            assert row.median_error_percent < min(row.peak_baseline_percent, row.roofline_baseline_percent), row


def test_intervals_hold_most_cells(rows: list[ScoreRow]) -> None:
    for row in rows:
        if row.cells >= 30:
            assert row.inside_interval_percent >= 85, row


def test_every_cell_has_operator_counts_a_gpu_and_constants_that_never_saw_it() -> None:
    tables = one_gpu_tables()
    assert {name: len(cells) for name, cells in tables.items()} == {
        "one_gpu_torchvision": 423,
        "one_gpu_cnn": 108,
        "tensorflow_2017": 28,
        "one_gpu_transformers": 42,
        "torchtitan": 8,
    }
    for cells in tables.values():
        for cell in cells:
            assert cell.operators in operator_lines()
            assert gpu_named(cell.gpu)
            assert fold_of(cell) in gpu_constants_document()["without"]


def test_a_fold_differs_from_the_constants_fitted_on_everything() -> None:
    assert gpu_constants("one_gpu_cnn") != gpu_constants()


def test_a_table_as_json_has_the_keys_of_every_table_and_the_scores_by_quality_gpu_and_precision(
    scores: list[OneGpuTable],
) -> None:
    document = next(table for table in scores if table.name == "one_gpu_cnn").to_json()
    several = Table("x", [Cell("x", 1.0, 1.0, 1.0, 1.0, 1.0, {})], "no", "nothing", "somewhere").to_json()
    assert set(several) <= set(document)
    assert (document["devices"], document["cells"]) == ("one", 108)
    assert [row["quality"] for row in document["qualities"]] == 2 * ["specification", "calibrated", "scaled"]
    assert set(document["precisions"]) == {"fp32", "tf32", "fp16"}
    assert document["gpus"]["RTX 3090"]["cells"] == 12
    assert set(document["baselines"]) == {"peak FLOPS", "roofline"}
    assert document["qualities"][0]["targets_met"] == {"median": True}


def test_a_host_without_a_measured_step_has_a_wide_interval(rows: list[ScoreRow]) -> None:
    unknown = row_of(rows, "one_gpu_torchvision", "host-bound")
    assert unknown.interval_factor > row_of(rows, "one_gpu_torchvision", "host-bound", "calibrated").interval_factor
    assert unknown.inside_interval_percent >= 85


def test_validate_names_every_table_of_one_device() -> None:
    assert list(TABLES) == list(ONE_GPU_TABLES)
