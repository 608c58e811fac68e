"""Calibration to the two-device rows of the published tables, scored on their rows on more devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, median

import pytest

from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.predict.link_factors import MeasuredStep, calibrate_links
from scalewise.predict.network import Layout
from scalewise.predict.predictor import Predictor
from scalewise.predict.simulator import TENSORFLOW, OverlapModel
from scalewise.published.gpu_steps import data_parallel_profile, load_data_parallel
from scalewise.published.stevens import STUDY_MODELS, stevens_profile
from scalewise.published.tables import (
    MODELS,
    load_small,
    load_stevens,
    load_t4,
    load_tensorflow,
    outlined_profile,
)
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import strategy_of
from scalewise.validation.multi_gpu import CLUSTERS, IRREGULAR

MIRRORED, THREADS = strategy_of("mirrored"), strategy_of("data-parallel:engine=threads")
Rows = tuple[str, list[MeasuredStep], list[MeasuredStep]]
"""Cluster, steps on two devices, and steps on more."""


def seconds(
    profile: ProfileDocument, strategy: Strategy, layout: Layout, batch: int, overlap: OverlapModel | None = None
) -> Callable[[Cluster], float]:
    def predicted(cluster: Cluster) -> float:
        return Predictor(profile, cluster, overlap).simulate(strategy, layout.workers, batch, layout).step_seconds

    return predicted


def stevens() -> Iterator[Rows]:
    rows = load_stevens()
    alone = {(row.workload, row.batch): row.epoch_seconds for row in rows if row.devices == 1}

    def epoch(profile: ProfileDocument, devices: int, batch: int, cluster: Cluster) -> float:
        return Predictor(profile, cluster).predict(THREADS, devices, batch).epoch_seconds

    for model in STUDY_MODELS:
        steps: dict[int, list[MeasuredStep]] = {2: [], 3: [], 4: []}
        for row in rows:
            if row.workload == model and row.devices > 1 and row.batch >= 10 * row.devices:
                linear = alone[model, row.batch] / row.devices
                run = partial(epoch, stevens_profile(model), row.devices, row.batch)
                steps[row.devices].append(MeasuredStep(model, row.epoch_seconds, linear, run, model))
        yield "4x-gtx-1080-ti", steps[2], steps[3] + steps[4]


def t4() -> Iterator[Rows]:
    two, more = list[MeasuredStep](), list[MeasuredStep]()
    for model, name in MODELS.items():
        rows = [row for row in load_t4() if row.model == model]
        alone = {row.batch_per_device: row.step_seconds for row in rows if row.devices == 1}
        profile = outlined_profile(name, "Tesla T4", alone)
        rows = [row for row in rows if row.batch_per_device in alone]
        on_two, on_more = [row for row in rows if row.devices == 2], [row for row in rows if row.devices > 2]
        for row in (*on_two[::12], *on_more[::60]):
            run = seconds(profile, MIRRORED, Layout(row.per_host), row.devices * row.batch_per_device)
            step = MeasuredStep(model, row.step_seconds, alone[row.batch_per_device], run, model)
            (two if row.devices == 2 else more).append(step)
    yield "4 x t4, 4 hosts", two, more


def tensorflow() -> Iterator[Rows]:
    """Rows whose variables are copied to all GPUs, on one host."""
    alone = {row.series: row.step_seconds for row in load_tensorflow() if row.devices == 1}
    rows = [row for row in load_tensorflow() if row.series in alone and row.hosts == 1 and row.devices > 1]
    rows = [row for row in rows if row.variables not in ("variables on host", "distributed servers")]
    for machine, variables in sorted({(row.machine, row.variables) for row in rows}):
        two, more = list[MeasuredStep](), list[MeasuredStep]()
        for row in rows:
            if (row.machine, row.variables) == (machine, variables):
                linear = alone[row.series]
                profile = outlined_profile(row.model, machine, {row.batch_per_device: linear})
                batch = row.devices * row.batch_per_device
                run = seconds(profile, MIRRORED, Layout((row.devices,)), batch, TENSORFLOW)
                step = MeasuredStep(row.model, row.step_seconds, linear, run, row.model)
                (two if row.devices == 2 else more).append(step)
        if two:
            yield machine, two, more


def small() -> Iterator[Rows]:
    rows = [row for row in load_small() if row.table == "ddp on v100"]
    for model in dict.fromkeys(row.model for row in rows):
        series = [row for row in rows if row.model == model]
        [alone] = [row.seconds for row in series if row.strategy == "alone"]
        two, more = list[MeasuredStep](), list[MeasuredStep]()
        for row in series:
            if row.devices > 1:
                profile = outlined_profile(model, row.machine, {row.batch_per_device: alone})
                layout = Layout((row.devices // row.hosts,) * row.hosts)
                run = seconds(profile, MIRRORED, layout, row.devices * row.batch_per_device)
                (two if row.devices == 2 else more).append(MeasuredStep(model, row.seconds, alone, run, model))
        yield f"{series[0].machine}, 2 hosts", two, more


def data_parallel() -> Iterator[Rows]:
    for gpu, cluster in CLUSTERS.items():
        two, more = list[MeasuredStep](), list[MeasuredStep]()
        for row in load_data_parallel():
            if row.gpu == gpu and (row.gpu, row.devices) != IRREGULAR:
                run = seconds(data_parallel_profile(row), THREADS, Layout((row.devices,)), row.batch)
                step = MeasuredStep(row.model, row.seconds, row.one_gpu_seconds, run, row.model)
                (two if row.devices == 2 else more).append(step)
        yield cluster, two[::2], more[::2]


def errors(steps: Sequence[MeasuredStep], cluster: Cluster) -> list[float]:
    return [100 * abs(step.predicted(cluster) / step.seconds - 1) for step in steps]


def test_calibration_to_two_devices_lowers_the_median_error_on_more() -> None:
    medians = dict[str, tuple[float, float]]()
    every_before, every_after = list[float](), list[float]()
    for table in (stevens, t4, tensorflow, small, data_parallel):
        before, after = list[float](), list[float]()
        for name, two, more in table():
            cluster = cluster_of(name)
            before += errors(more, cluster)
            after += errors(more, calibrate_links(cluster, two).cluster)
        medians[table.__name__] = median(before), median(after)
        every_before, every_after = every_before + before, every_after + after
    for name, (first, later) in medians.items():
        assert later < first + 0.1, name
    assert median(every_after) < median(every_before)
    assert fmean(later for _, later in medians.values()) < fmean(first for first, _ in medians.values())


@pytest.mark.parametrize("table", [stevens, t4, tensorflow, small, data_parallel])
def test_an_uninformative_published_row_changes_predictions_by_a_few_percent_at_most(
    table: Callable[[], Iterator[Rows]],
) -> None:
    for name, two, more in table():
        cluster = cluster_of(name)
        for step in [step for step in two if step.loss < 0.05][:2]:
            calibrated = calibrate_links(cluster, [step]).cluster
            for other in more[::10]:
                assert other.predicted(calibrated) == pytest.approx(other.predicted(cluster), rel=0.03)
