"""Claims of the study hold on its own cells, and are checked by numbers on other cells."""

from __future__ import annotations

import pytest

from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.series import Cell, Series, series_of
from scalewise.studies.stevens import claims, headline


@pytest.fixture(scope="module")
def published() -> dict[str, Series]:
    environment = stevens_environment()
    return {series.workload: series for series in series_of(stevens_measurements(), {environment.id: environment})}


def grid(workload: str, epochs: dict[int, dict[int, float]]) -> Series:
    cells = [Cell(devices, batch, 1000, seconds) for devices, line in epochs.items() for batch, seconds in line.items()]
    return Series(workload, "data-parallel", tuple(cells), "2 cores of Some CPU", "2026-11-15")


def test_every_finding_of_the_study_holds_on_its_own_cells(published: dict[str, Series]) -> None:
    checked = claims(published, published)
    assert [claim.holds for claim in checked] == [True] * 8
    assert all(claim.here == claim.published for claim in checked)
    assert headline(published, checked) == (
        "Found on 4x GTX 1080 Ti: linear chokes (4 devices take 9.0 times as long at batch 10) and conv gains "
        "(3.76x on 4 devices at batch 50); of the study's 8 findings, 8 hold here"
    )


def test_claims_without_the_needed_cells_are_uncertain(published: dict[str, Series]) -> None:
    here = {"linear": grid("linear", {1: {10: 1.0, 20: 0.6}, 2: {10: 3.0, 20: 1.6}})}
    checked = {claim.statement.partition(" (")[0]: claim for claim in claims(here, published)}
    assert checked["linear never gains from more devices"].holds is True
    assert checked["linear takes the same time on 2, 3 and 4 devices"].holds is None
    assert checked["linear takes the same time on 2, 3 and 4 devices"].here == "measured on 1 and 2 devices only"
    assert checked["linear's epoch time is a floor plus a constant per step"].holds is None
    assert checked["conv gains from more devices"].here == "not measured"
    assert headline(here, list(checked.values())).endswith(
        "; of the study's 8 findings, 1 holds here and 7 are uncertain"
    )


def test_claims_are_refuted_by_numbers(published: dict[str, Series]) -> None:
    here = {
        "linear": grid("linear", {1: {10: 1.0, 20: 1.0, 50: 1.0}, 2: {10: 1.5, 20: 0.7, 50: 0.6}}),
        "conv": grid("conv", {1: {10: 4.0, 20: 4.0, 50: 3.0}, 2: {10: 2.0, 20: 2.1, 50: 1.6}}),
    }
    checked = {claim.statement.partition(" (")[0]: claim for claim in claims(here, published)}
    assert checked["linear never gains from more devices"].holds is False
    assert checked["conv gains from more devices"].holds is True
    assert checked["conv gains least at the smallest batch"].holds is False
    assert checked["conv bounces"].holds is False
    assert checked["conv bounces"].here == "no jump between batches 10 and 50"
    assert headline(here, list(checked.values())) == (
        "Found on 2 cores of Some CPU: linear chokes (2 devices take 1.5 times as long at batch 10, but are 1.67x as "
        "fast at batch 50) and conv gains (2.00x on 2 devices at batch 10); of the study's 8 findings, 1 holds here, 5 "
        "do not and 2 are uncertain"
    )
    assert checked["conv gains from more devices"].sentence.endswith(
        "published: best speed-up: 2.51x on 2 devices (batch 20), 3.16x on 3 (batch 30) and 3.76x on 4 "
        "(batch 50); compared with one device at its best batch (10): 1.79x, 2.38x and 2.98x"
    )


def test_a_jump_at_one_device_count_alone_is_not_yet_a_bounce(published: dict[str, Series]) -> None:
    here = {"conv": grid("conv", {1: {10: 2.0, 20: 3.0}, 2: {10: 2.0, 20: 1.5}})}
    [checked] = [claim for claim in claims(here, published) if claim.statement.startswith("conv bounces")]
    assert checked.holds is None
    assert checked.here.endswith(
        "(from 10 to 20 on 1 device); uncertain, because it was found at one device count only"
    )


def test_a_difference_within_the_noise_is_neither_a_gain_nor_a_choke(published: dict[str, Series]) -> None:
    cells = (Cell(1, 10, 1000, 1.0, uncertainty=0.3), Cell(2, 10, 1000, 0.8, uncertainty=0.3))
    here = {name: Series(name, "data-parallel", cells, "a machine") for name in ("linear", "conv")}
    checked = {claim.statement.partition(" (")[0]: claim for claim in claims(here, published)}
    assert checked["linear never gains from more devices"].holds is None
    assert checked["conv gains from more devices"].holds is None
    assert "conv may gain (1.25x (± 42%) on 2 devices at batch 10)" in headline(here, list(checked.values()))


def test_claims_within_the_intervals_are_uncertain(published: dict[str, Series]) -> None:
    sure = [Cell(1, 10, 1000, 1.0, uncertainty=0.01), Cell(2, 10, 1000, 0.6, uncertainty=0.01)]
    vague = [Cell(1, 20, 1000, 1.0, uncertainty=0.2), Cell(2, 20, 1000, 0.8, uncertainty=0.2)]
    here = {"conv": Series("conv", "data-parallel", (*sure, *vague), "a machine")}
    checked = {claim.statement: claim for claim in claims(here, published)}
    assert checked["conv gains least at the smallest batch"].verdict == "uncertain"
    assert checked["conv gains least at the smallest batch"].here.endswith("up to 1.25x (± 28%) at larger batches")
    choking = [Cell(1, 10, 1000, 1.0), Cell(2, 10, 1000, 3.0)]
    here = {"linear": Series("linear", "data-parallel", (*choking, *vague), "a machine")}
    [never] = [claim for claim in claims(here, published) if "never gains" in claim.statement]
    assert never.verdict == "uncertain"
    assert never.here.endswith("0 are faster, 1 is uncertain")


def test_noise_refutes_nothing(published: dict[str, Series]) -> None:
    """The epoch times show no jump, no saturation and no law; with noise these claims are uncertain."""
    for uncertainty, verdict in ((0.0, "does not hold"), (0.1, "uncertain")):
        cells = tuple(
            Cell(devices, batch, 1000, seconds / devices, uncertainty)
            for devices in (1, 2)
            for batch, seconds in ((10, 4.0), (20, 3.9), (50, 3.0))
        )
        here = {name: Series(name, "data-parallel", cells, "a machine") for name in ("linear", "conv")}
        checked = {claim.statement.partition(" (")[0]: claim for claim in claims(here, published)}
        names = ("conv bounces", "conv saturates a device with few samples")
        assert [checked[name].verdict for name in names] == [verdict] * 2
        assert checked["linear's epoch time is a floor plus a constant per step"].verdict == verdict
        assert ("no certain jump" in checked["conv bounces"].here) == (verdict == "uncertain")


@pytest.mark.parametrize(
    ("apart", "uncertainty", "verdict"),
    [
        (0.02, 0.0, "holds"),
        (0.01, 0.02, "holds"),
        (0.02, 0.05, "uncertain"),
        (0.2, 0.0, "does not hold"),
        (0.2, 0.05, "does not hold"),
        (0.2, 0.3, "uncertain"),
    ],
)
def test_equal_times_are_checked_beyond_the_noise(
    published: dict[str, Series], apart: float, uncertainty: float, verdict: str
) -> None:
    epochs = {1: 1.0, 2: 2.0, 3: 2.0 * (1 + apart)}
    cells = tuple(Cell(devices, 10, 1000, seconds, uncertainty) for devices, seconds in epochs.items())
    here = {"linear": Series("linear", "data-parallel", cells, "a machine")}
    [checked] = [claim for claim in claims(here, published) if "the same time" in claim.statement]
    assert checked.verdict == verdict
    assert (f"they differ by {apart:.0%} at batch 10 (±" in checked.here) == (verdict == "uncertain")


@pytest.mark.parametrize(
    ("uncertainty", "bent", "verdict"),
    [(0.0, 0.0, "holds"), (0.02, 0.0, "holds"), (0.6, 0.0, "uncertain"), (0.02, 3.0, "does not hold")],
)
def test_growth_with_the_bytes_is_checked_beyond_the_noise(
    published: dict[str, Series], uncertainty: float, bent: float, verdict: str
) -> None:
    cells = [
        Cell(2, batch, 1000, 1 + 10 / batch + bent * (batch == 40), uncertainty, bytes_per_step=100, timed_steps=50)
        for batch in (5, 10, 20, 40)
    ]
    here = {"linear": Series("linear", "data-parallel", tuple(cells), "a machine")}
    [checked] = [claim for claim in claims(here, published) if "grows with the bytes" in claim.statement]
    assert checked.verdict == verdict
    assert ("timings vary by up to ± 60%" in checked.here) == (verdict == "uncertain")


def test_saturation_at_large_batches_refutes_the_claim(published: dict[str, Series]) -> None:
    here = {"conv": grid("conv", {1: {100: 4.0, 400: 2.0, 500: 1.99}, 2: {100: 2.0, 400: 1.0, 500: 0.99}})}
    [checked] = [claim for claim in claims(here, published) if "few samples" in claim.statement]
    assert checked.verdict == "does not hold"
    assert "from batch 400 on 1 device (400 per device)" in checked.here
