"""The findings of the study, computed from its 96 published cells."""

from __future__ import annotations

import pytest

from scalewise.findings.bounce import bounce
from scalewise.findings.cell import Series
from scalewise.findings.collect import findings_of
from scalewise.findings.equality import equality
from scalewise.findings.floor import loading_floor
from scalewise.findings.law import inverse_batch_law
from scalewise.findings.saturation import saturation
from scalewise.findings.series import series_of
from scalewise.findings.speedup import best_speedups, chokes
from scalewise.findings.traffic import traffic, transfer_fit
from scalewise.published.measured import stevens_environment, stevens_measurements


@pytest.fixture(scope="module")
def study() -> dict[str, Series]:
    environment = stevens_environment()
    return {series.workload: series for series in series_of(stevens_measurements(), {environment.id: environment})}


def test_it_is_two_series_of_48_cells_labelled_with_machine_and_year(study: dict[str, Series]) -> None:
    assert {name: len(series.cells) for name, series in study.items()} == {"linear": 48, "conv": 48}
    assert {series.machine for series in study.values()} == {"4x GTX 1080 Ti"}
    assert {series.when for series in study.values()} == {"2020"}
    assert study["linear"].strategy == "data-parallel:engine=threads"


def test_linear_never_gains_from_more_gpus(study: dict[str, Series]) -> None:
    found = chokes(study["linear"])
    assert found
    assert found.never_gains
    assert (found.cells, found.gaining, len(found.choking)) == (36, 0, 36)
    assert (found.choking[0].devices, found.choking[0].batch) == (4, 10)
    assert 1 / found.choking[0].speedup == pytest.approx(9.0, abs=0.01)
    assert 1 / found.choking[-1].speedup == pytest.approx(1.86, abs=0.01)
    assert found.sentence == (
        "never gains from more devices: all 36 cells take 1.9 to 9.0 times as long as one device, "
        "worst on 4 devices at batch 10"
    )


def test_linear_epochs_are_a_floor_plus_a_constant_for_each_step(study: dict[str, Series]) -> None:
    law = inverse_batch_law(study["linear"])
    assert law
    assert all(fit.holds and fit.batches == 12 for fit in law.fits)
    floors = {fit.devices: fit.floor_seconds for fit in law.fits}
    constants = {fit.devices: fit.seconds_per_step for fit in law.fits}
    assert floors == pytest.approx({1: 0.1858, 2: 0.2091, 3: 0.2143, 4: 0.2126}, abs=1e-4)
    assert constants == pytest.approx({1: 0.00405, 2: 0.04383, 3: 0.04445, 4: 0.04467}, abs=1e-5)
    assert min(fit.r_squared for fit in law.fits) == pytest.approx(0.9996, abs=1e-4)
    assert max(fit.worst_error for fit in law.fits) < 0.032


def test_linear_has_the_data_loading_floor_that_the_study_overlooks(study: dict[str, Series]) -> None:
    floor = loading_floor(study["linear"])
    assert floor
    assert floor.seconds_per_sample == pytest.approx(92.9e-6, rel=1e-3)
    assert floor.load_seconds is None


def test_linear_is_equal_on_2_3_and_4_gpus(study: dict[str, Series]) -> None:
    found = equality(study["linear"])
    assert found
    assert found.equal
    assert found.device_counts == (2, 3, 4)
    assert found.worst_batch == 300
    assert found.worst_spread == pytest.approx(0.0323, abs=1e-4)


def test_linear_epochs_follow_the_bytes_moved_at_2_2_gigabytes_per_second(study: dict[str, Series]) -> None:
    moved, fit = traffic(study["linear"]), transfer_fit(study["linear"])
    assert moved
    assert fit
    assert moved.bytes_per_epoch[2][20] == 9_681_776_000  # the study rounds it to 10 GB
    assert moved.bytes_per_epoch[4][100] == 1_936_355_200
    assert fit.governs
    assert fit.GBps == pytest.approx(2.19, abs=0.02)
    assert fit.cells == 36


def test_linear_has_no_bounce(study: dict[str, Series]) -> None:
    assert bounce(study["linear"]) is None


def test_conv_bounces_between_13_and_15_clips_per_gpu_at_every_gpu_count(study: dict[str, Series]) -> None:
    found = bounce(study["conv"])
    assert found
    assert [(jump.devices, jump.last_low, jump.first_high) for jump in found.jumps] == [
        (1, 10, 20),
        (2, 10, 15),
        (3, 10, 17),
        (4, 13, 18),
    ]
    assert (found.above, found.at_most) == (13, 15)
    assert [jump.rise for jump in found.jumps] == pytest.approx([0.405, 0.352, 0.283, 0.286], abs=1e-3)


def test_conv_gains_most_where_each_gpu_has_about_10_clips(study: dict[str, Series]) -> None:
    found = best_speedups(study["conv"])
    assert found
    assert [(each.devices, each.batch) for each in found.best] == [(2, 20), (3, 30), (4, 50)]
    assert [each.speedup for each in found.best] == pytest.approx([2.514, 3.158, 3.763], abs=1e-3)
    assert found.over_best_single == pytest.approx({2: 1.789, 3: 2.383, 4: 2.984}, abs=1e-3)
    assert found.best_single_batch == 10


def test_conv_does_not_choke_and_batch_10_neither_gains_nor_loses_on_two_gpus(study: dict[str, Series]) -> None:
    found = chokes(study["conv"])
    assert found
    assert (found.cells, found.gaining, found.choking) == (36, 34, ())


def test_a_gpu_is_saturated_with_10_clips_of_conv(study: dict[str, Series]) -> None:
    found = saturation(study["conv"])
    assert found
    assert [(point.devices, point.batch, point.batch_per_device) for point in found.reached] == [
        (1, 10, 10),
        (2, 20, 10),
        (3, 30, 10),
        (4, 50, 13),
    ]


def test_conv_follows_neither_the_batch_nor_the_bytes(study: dict[str, Series]) -> None:
    law, fit, equal = inverse_batch_law(study["conv"]), transfer_fit(study["conv"]), equality(study["conv"])
    assert law
    assert law.holding == []
    assert fit
    assert not fit.governs
    assert equal
    assert not equal.equal


def test_every_finding_is_a_document_with_its_sentence(study: dict[str, Series]) -> None:
    documents = [finding.to_json() for series in study.values() for finding in findings_of(series)]
    assert [document["kind"] for document in documents[:3]] == ["Chokes", "BestSpeedups", "Equality"]
    assert all(document["sentence"] for document in documents)
    assert len(documents) == 16
