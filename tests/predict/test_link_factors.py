"""Calibration of link factors to measured steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.predict.link_factors import MeasuredStep, calibrate_links, class_of, with_factors
from scalewise.predict.predictor import Predictor
from scalewise.strategies.registry import strategy_of

MIRRORED = strategy_of("mirrored")
BRIDGED = cluster_of("4 x rtx-3090, nvlink")
PCIE = "devices: pcie4-through-host"
BRIDGE = "devices: nvlink-bridge"


def model(megabytes: int, seconds: float = 0.1) -> ProfileDocument:
    layers = tuple(
        LayerCost(name=f"{n}", parameter_bytes=megabytes * 10**5, activation_bytes=0, flops=1) for n in range(10)
    )
    return ProfileDocument(
        workload="x",
        device="RTX 3090",
        execution="eager",
        samples_per_epoch=64,
        parameter_bytes=megabytes * 10**6,
        layers=layers,
        steps=(StepCost(batch=32, forward=seconds / 3, backward=seconds * 2 / 3, update=0, load=0),),
    )


def predicted(megabytes: int, devices: int) -> Callable[[Cluster], float]:
    return lambda cluster: Predictor(model(megabytes), cluster).simulate(MIRRORED, devices, 32 * devices).step_seconds


def step(megabytes: int, devices: int, true: Cluster, factor: float = 1.0) -> MeasuredStep:
    """A step that was measured on a cluster whose links differ from the catalogue's."""
    run = predicted(megabytes, devices)
    return MeasuredStep(f"{megabytes} MB on {devices}", factor * run(true), 0.1, run)


def test_steps_on_a_slower_link_find_its_factor() -> None:
    true = with_factors(BRIDGED, {PCIE: -0.7})
    calibration = calibrate_links(BRIDGED, [step(500, 4, true), step(1000, 4, true)])
    factors = {factor.link_class: factor for factor in calibration.factors}
    assert factors[PCIE].factor == pytest.approx(0.5, rel=0.1)
    assert factors[PCIE].low < 0.5 < factors[PCIE].high
    assert calibration.cluster.knowledge == "fitted"
    assert all(abs(row.residual_percent) < 6 for row in calibration.residuals)


def test_a_step_on_two_bridged_devices_leaves_pcie_as_it_is() -> None:
    true = with_factors(BRIDGED, {BRIDGE: -1.0, PCIE: -1.0})
    calibration = calibrate_links(BRIDGED, [step(2000, 2, true)])
    assert [factor.link_class for factor in calibration.factors] == [BRIDGE]
    links = {class_of(link): link.GBps for link in calibration.cluster.links}
    before = {class_of(link): link.GBps for link in BRIDGED.links}
    assert links[PCIE] == before[PCIE]
    assert links[BRIDGE] < 0.6 * before[BRIDGE]


@pytest.mark.parametrize("measured_seconds", [0.099, 0.1, 0.102, 0.105])
def test_a_step_that_loses_little_changes_no_prediction_by_more_than_a_few_percent(measured_seconds: float) -> None:
    uninformative = MeasuredStep("little", measured_seconds, 0.1, predicted(50, 4))
    calibration = calibrate_links(BRIDGED, [uninformative])
    assert calibration.cluster.knowledge == "catalogue"
    for megabytes in (10, 100, 1000, 5000):
        run = predicted(megabytes, 4)
        assert run(calibration.cluster) == pytest.approx(run(BRIDGED), rel=0.03)


def test_every_step_has_a_residual_also_if_the_fit_misses_it() -> None:
    true = with_factors(BRIDGED, {PCIE: -0.5})
    calibration = calibrate_links(BRIDGED, [step(500, 4, true), step(700, 4, true), step(600, 4, true, 1.8)])
    assert [abs(row.residual_percent) > 20 for row in calibration.residuals] == [False, False, True]
    assert "600 MB on 4: measured" in calibration.lines[-1]


def test_a_factor_that_a_step_says_little_about_stays_near_the_catalogues() -> None:
    true = with_factors(BRIDGED, {PCIE: -1.0})
    [factor] = calibrate_links(BRIDGED, [step(40, 4, true)]).factors
    assert factor.low < 0.5  # it may be half as fast
    assert factor.factor > 0.95


def test_a_bandwidth_that_is_well_known_moves_less() -> None:
    known = replace(BRIDGED, links=tuple(replace(link, known_within=0.05) for link in BRIDGED.links))
    true = with_factors(BRIDGED, {PCIE: -0.7})
    usual, little = (calibrate_links(cluster, [step(120, 4, true)]).factors[0] for cluster in (BRIDGED, known))
    assert usual.factor < 0.75
    assert little.factor > 0.95
