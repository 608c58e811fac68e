"""Measured cells as profiles, and links fitted from them."""

from __future__ import annotations

import pytest

from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.errors import UserError
from scalewise.prediction.calibrate import fit_cells, scaled
from scalewise.prediction.cells import TimedCell, profile_from, rehearsed, timed_cells
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.results.measurement import Measurement
from scalewise.results.profile import ProfileDocument
from scalewise.results.statistics import Interval

OUTLINE = stevens_profile("linear").model_copy(update={"steps": ()})
DEVICE = Device("one core of X", 2, 8.0, 0.05, 10.0, 0.0, copy_GBps=2.0)
LINKS = (Link("devices", "sockets", 1.0, 100.0), Link("host-device", "memory", 4.0, 0.0))
BOX = Cluster("two cores", 1, 2, (DEVICE,), LINKS, backend="gloo", knowledge="measured")


def measured(strategy: str, devices: int, batch: int, seconds: float, **more: object) -> Measurement:
    values: dict[str, object] = {
        "workload": "linear", "strategy": strategy, "devices": devices, "device_kind": "cpu", "batch": batch,
        "batch_per_device": -(-batch // devices), "optimizer": "adam", "protocol": "quick", "execution": "eager",
        "step_seconds": Interval(seconds, seconds, seconds, 9), "environment": "e", "started": "2026-11-16T00:00:00",
        "phases": {"load": 0.1, "forward": 0.2, "loss": 0.1, "backward": 0.4, "update": 0.2},
    }  # fmt: skip
    return Measurement(**{**values, **more})  # type: ignore[arg-type]


def outline(_: Measurement) -> ProfileDocument:
    return OUTLINE


ALONE = [measured("single", 1, 10, 0.010), measured("single", 1, 20, 0.018)]


def test_one_device_cells_are_a_profile_whose_phases_sum_to_the_step() -> None:
    made = profile_from(OUTLINE, ALONE, 2000)
    assert [step.batch for step in made.steps] == [10, 20]
    assert made.samples_per_epoch == 2000
    first = made.steps[0]
    assert (first.load, first.forward, first.backward, first.update) == pytest.approx((0.001, 0.003, 0.004, 0.002))


def test_single_is_preferred_to_a_strategy_of_one_rank() -> None:
    made = profile_from(OUTLINE, [*ALONE, measured("mirrored", 1, 10, 0.5)], 2000)
    assert made.steps[0].seconds == pytest.approx(0.010)


def test_cells_on_several_devices_have_the_profile_of_their_like() -> None:
    other = measured("mirrored", 2, 20, 0.03, environment="another")
    failed = measured("mirrored", 2, 10, 0.03, status="failed", reason="x", step_seconds=None)
    found = timed_cells([*ALONE, measured("mirrored", 2, 20, 0.02), other, failed], outline, {"e": 2000})
    assert [(each.cell.batch, each.seconds) for each in found] == [(20, 0.02)]
    assert found[0].strategy.name == "mirrored"


def test_options_of_a_strategy_are_read_again() -> None:
    cell = measured("mirrored", 2, 20, 0.02, options={"bucket_MB": None, "compress": "fp16"})
    assert not TimedCell(cell, OUTLINE, 0.02).strategy.exact


def test_one_cell_finds_a_link_again() -> None:
    truth = scaled(BOX, "devices", 0.3)
    profile = profile_from(OUTLINE, ALONE, 2000)
    cell = measured("mirrored", 2, 20, 0.02)
    seconds = Predictor(profile, truth).simulate(TimedCell(cell, profile, 1).strategy, 2, 20).step_seconds
    fitted = fit_cells(BOX, [TimedCell(cell, profile, seconds)])
    link = fitted.link("devices")
    assert link is not None
    assert link.GBps == pytest.approx(0.3, rel=0.02)
    assert fitted.devices[0].copy_GBps == pytest.approx(0.6, rel=0.02)
    assert fitted.knowledge == "fitted"


def test_rehearsed_hosts_are_joined_by_their_link_and_fit_nothing() -> None:
    cell = TimedCell(measured("mirrored", 2, 20, 0.02, hosts=2, link="1gbit"), OUTLINE, 0.02)
    place = cell.place_on(BOX)
    assert (place.hosts, place.devices_per_host, place.size) == (2, 1, 2)
    assert place.link("hosts") == rehearsed("1gbit")
    assert rehearsed("200mbit").GBps == pytest.approx(0.949 * 0.025)
    with pytest.raises(UserError, match="one on two devices is enough"):
        fit_cells(BOX, [cell])


def test_a_link_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="cannot read link 'fast'"):
        rehearsed("fast")
