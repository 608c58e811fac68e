"""The findings of the study, computed from its 96 published cells."""

from __future__ import annotations

import pytest

from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.epoch_laws import bounce, inverse_batch_law, loading_floor, saturation
from scalewise.reporting.report import findings_of
from scalewise.reporting.series import Series, series_of
from scalewise.reporting.speedups import best_speedups, chokes, equality
from scalewise.reporting.step_figures import traffic, transfer_fit


@pytest.fixture(scope="module")
def study() -> dict[str, Series]:
    environment = stevens_environment()
    return {series.workload: series for series in series_of(stevens_measurements(), {environment.id: environment})}


def test_the_study_has_two_series_of_48_cells_labelled_with_machine_and_year(study: dict[str, Series]) -> None:
    assert {name: len(series.cells) for name, series in study.items()} == {"linear": 48, "conv": 48}
    assert {series.machine for series in study.values()} == {"4x GTX 1080 Ti"}
    assert {series.when for series in study.values()} == {"2020"}
    assert study["linear"].strategy == "data-parallel:engine=threads"


def test_linear_never_gains_from_more_gpus(study: dict[str, Series]) -> None:
    finding = chokes(study["linear"])
    assert finding
    assert finding.never_gains
    assert (finding.cells, finding.gaining, len(finding.choking)) == (36, 0, 36)
    assert (finding.choking[0].devices, finding.choking[0].batch) == (4, 10)
    assert 1 / finding.choking[0].speedup == pytest.approx(9.0, abs=0.01)
    assert 1 / finding.choking[-1].speedup == pytest.approx(1.86, abs=0.01)
    assert finding.sentence == (
        "more devices are never faster: all 36 cells take 1.9 to 9.0 times as long as one device "
        "(slowest: 4 devices at batch 10)"
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
    finding = equality(study["linear"])
    assert finding
    assert finding.equal
    assert finding.device_counts == (2, 3, 4)
    assert finding.worst_batch == 300
    assert finding.worst_spread == pytest.approx(0.0323, abs=1e-4)


def test_linear_epoch_time_grows_with_the_bytes_sent_at_2_2_gigabytes_per_second(study: dict[str, Series]) -> None:
    sent, fit = traffic(study["linear"]), transfer_fit(study["linear"])
    assert sent
    assert fit
    assert sent.bytes_per_epoch[2][20] == 9_681_776_000  # the study rounds it to 10 GB
    assert sent.bytes_per_epoch[4][100] == 1_936_355_200
    assert fit.governs
    assert fit.GBps == pytest.approx(2.19, abs=0.02)
    assert fit.cells == 36


def test_linear_has_no_bounce(study: dict[str, Series]) -> None:
    assert bounce(study["linear"]) is None


def test_conv_bounces_between_13_and_15_clips_per_gpu_at_every_gpu_count(study: dict[str, Series]) -> None:
    finding = bounce(study["conv"])
    assert finding
    assert [(jump.devices, jump.last_low, jump.first_high) for jump in finding.jumps] == [
        (1, 10, 20),
        (2, 10, 15),
        (3, 10, 17),
        (4, 13, 18),
    ]
    assert (finding.above, finding.at_most) == (13, 15)
    assert [jump.rise for jump in finding.jumps] == pytest.approx([0.405, 0.352, 0.283, 0.286], abs=1e-3)


def test_conv_gains_most_where_each_gpu_has_about_10_clips(study: dict[str, Series]) -> None:
    finding = best_speedups(study["conv"])
    assert finding
    assert [(speedup.devices, speedup.batch) for speedup in finding.best] == [(2, 20), (3, 30), (4, 50)]
    assert [speedup.speedup for speedup in finding.best] == pytest.approx([2.514, 3.158, 3.763], abs=1e-3)
    assert finding.over_best_single == pytest.approx({2: 1.789, 3: 2.383, 4: 2.984}, abs=1e-3)
    assert finding.best_single_batch == 10


def test_conv_does_not_choke_and_batch_10_neither_gains_nor_loses_on_two_gpus(study: dict[str, Series]) -> None:
    finding = chokes(study["conv"])
    assert finding
    assert (finding.cells, finding.gaining, finding.choking) == (36, 34, ())


def test_a_gpu_is_saturated_with_10_clips_of_conv(study: dict[str, Series]) -> None:
    finding = saturation(study["conv"])
    assert finding
    assert [(point.devices, point.batch, point.batch_per_device) for point in finding.reached] == [
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
