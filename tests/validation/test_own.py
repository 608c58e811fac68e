"""One's own measurements, predicted from their one-device cells: what is fitted on what, and how it is said."""

from __future__ import annotations

import pytest

from scalewise.prediction.calibrate import scaled
from scalewise.prediction.cells import TimedCell, profile_from
from scalewise.prediction.predict import Predictor
from scalewise.results.profile import ProfileDocument
from scalewise.validation.own import fitted_table, given_table
from tests.prediction.test_cells import ALONE, BOX, OUTLINE, measured

TRUTH = scaled(BOX, "devices", 0.4)
PROFILE = profile_from(OUTLINE, ALONE, 2000)


def timed(batch: int, workload: str = "linear", profile: ProfileDocument = PROFILE) -> TimedCell:
    """As it would be measured on a machine whose links are as in TRUTH."""
    cell = TimedCell(measured("mirrored", 2, batch, 1.0, workload=workload), profile, 1.0)
    seconds = Predictor(profile, TRUTH).simulate(cell.strategy, 2, batch).step_seconds
    return TimedCell(cell.cell, profile, seconds)


def test_links_that_are_known_fit_nothing() -> None:
    table = given_table("mine", [timed(20), timed(40)], TRUTH, "links of a test")
    assert (table.in_sample, table.fitted) == ("no", "nothing; links of a test")
    assert [cell.error for cell in table.cells] == pytest.approx([0, 0], abs=1e-9)


def test_several_workloads_are_predicted_from_each_others_links() -> None:
    table = fitted_table("mine", [timed(20), timed(20, "conv")], BOX)
    assert table.in_sample == "other models"
    assert max(abs(cell.error) for cell in table.cells) < 0.02


def test_one_workload_is_predicted_from_its_other_batches() -> None:
    table = fitted_table("mine", [timed(20), timed(40)], BOX)
    assert table.in_sample == "other cells"
    assert max(abs(cell.error) for cell in table.cells) < 0.02


def test_a_single_cell_is_fitted_on_itself_and_that_is_said() -> None:
    table = fitted_table("mine", [timed(20)], BOX)
    assert (table.in_sample, table.fitted) == ("yes", "one bandwidth, on these very cells")


def test_naive_rules_and_one_device_stand_beside() -> None:
    [cell] = given_table("mine", [timed(20)], TRUTH, "links").cells
    assert cell.alone == pytest.approx(0.018)
    assert cell.baselines == pytest.approx({"linear scaling": 0.009, "bytes / specification": 0.009})
