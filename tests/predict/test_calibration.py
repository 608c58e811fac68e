"""Measured cells as profiles, and links fitted from them."""

from __future__ import annotations

import pytest

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval
from scalewise.formats.profile import ProfileDocument
from scalewise.formats.store import Measurement
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.predict.calibration import TimedCell, fit_cells, profile_from, rehearsed, scaled, timed_cells
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import stevens_profile

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


def test_phases_of_a_profile_of_cells_sum_to_the_step() -> None:
    profile = profile_from(OUTLINE, ALONE, 2000)
    assert [step.batch for step in profile.steps] == [10, 20]
    assert profile.samples_per_epoch == 2000
    first = profile.steps[0]
    assert (first.load, first.forward, first.backward, first.update) == pytest.approx((0.001, 0.003, 0.004, 0.002))


def test_single_is_preferred_to_other_strategies_on_one_device() -> None:
    profile = profile_from(OUTLINE, [*ALONE, measured("mirrored", 1, 10, 0.5)], 2000)
    assert profile.steps[0].seconds == pytest.approx(0.010)


def test_cells_get_the_profile_of_their_workload_and_environment() -> None:
    other = measured("mirrored", 2, 20, 0.03, environment="another")
    failed = measured("mirrored", 2, 10, 0.03, status="failed", reason="x", step_seconds=None)
    timed = timed_cells([*ALONE, measured("mirrored", 2, 20, 0.02), other, failed], outline, {"e": 2000})
    assert [(cell.cell.batch, cell.seconds) for cell in timed] == [(20, 0.02)]
    assert timed[0].strategy.name == "mirrored"


def test_options_of_a_measured_strategy_are_restored() -> None:
    cell = measured("mirrored", 2, 20, 0.02, options={"bucket_MB": None, "compress": "fp16"})
    assert not TimedCell(cell, OUTLINE, 0.02).strategy.exact


def test_one_cell_is_enough_to_fit_a_link() -> None:
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


def test_emulated_hosts_use_their_link_and_fit_nothing() -> None:
    cell = TimedCell(measured("mirrored", 2, 20, 0.02, hosts=2, link="1gbit"), OUTLINE, 0.02)
    place = cell.place_on(BOX)
    assert (place.hosts, place.devices_per_host, place.size) == (2, 1, 2)
    assert place.link("hosts") == rehearsed("1gbit")
    assert rehearsed("200mbit").GBps == pytest.approx(0.949 * 0.025)
    with pytest.raises(UserError, match="measure at least one cell on two devices"):
        fit_cells(BOX, [cell])


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(UserError, match="cannot read link 'fast'"):
        rehearsed("fast")
