"""Validation on own measurements: which links are fitted to which cells."""

from __future__ import annotations

import pytest

from scalewise.formats.profile import ProfileDocument
from scalewise.predict.calibration import TimedCell, profile_from, scaled
from scalewise.predict.predictor import Predictor
from scalewise.validation.validate import fitted_table, given_table
from tests.predict.test_calibration import ALONE, BOX, OUTLINE, measured

TRUTH = scaled(BOX, "devices", 0.4)
PROFILE = profile_from(OUTLINE, ALONE, 2000)


def timed(batch: int, workload: str = "linear", profile: ProfileDocument = PROFILE) -> TimedCell:
    """Return a cell as measured on a machine with the links of TRUTH."""
    cell = TimedCell(measured("mirrored", 2, batch, 1.0, workload=workload), profile, 1.0)
    seconds = Predictor(profile, TRUTH).simulate(cell.strategy, 2, batch).step_seconds
    return TimedCell(cell.cell, profile, seconds)


def test_given_links_are_not_fitted() -> None:
    table = given_table("mine", [timed(20), timed(40)], TRUTH, "links of a test")
    assert (table.in_sample, table.fitted) == ("no", "nothing; links of a test")
    assert [cell.error for cell in table.cells] == pytest.approx([0, 0], abs=1e-9)


def test_links_are_fitted_to_other_workloads() -> None:
    table = fitted_table("mine", [timed(20), timed(20, "conv")], BOX)
    assert table.in_sample == "other models"
    assert max(abs(cell.error) for cell in table.cells) < 0.02


def test_links_are_fitted_to_other_batches() -> None:
    table = fitted_table("mine", [timed(20), timed(40)], BOX)
    assert table.in_sample == "other cells"
    assert max(abs(cell.error) for cell in table.cells) < 0.02


def test_a_single_cell_is_fitted_on_itself() -> None:
    table = fitted_table("mine", [timed(20)], BOX)
    assert (table.in_sample, table.fitted) == ("yes", "one bandwidth, on the same cells")


def test_cells_have_naive_baselines_and_one_device() -> None:
    [cell] = given_table("mine", [timed(20)], TRUTH, "links").cells
    assert cell.alone == pytest.approx(0.018)
    assert cell.baselines == pytest.approx({"linear scaling": 0.009, "bytes / specification": 0.009})
