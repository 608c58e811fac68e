"""The study's multi-GPU epochs, from its one-GPU epochs and one constant."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.calibrate import Fit, fit_link
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import MODELS, stevens_profile
from scalewise.published.tables import STEVENS, StevensRow, load_stevens
from scalewise.strategies.data_parallel import DataParallel
from scalewise.validation.cell import Cell
from scalewise.validation.table import Table

STRATEGY = DataParallel(engine="threads")
FITTED = ("linear", 2, 100)
"""The one two-GPU cell that the link's constant comes from, in the middle of the grid."""
FEWEST_PROFILED = 10
"""Clips per device; below it nobody measured one GPU."""
PCIE_GBps = 12.0


def fitted_cluster() -> Fit:
    catalogued = cluster_of("4x-gtx-1080-ti")
    workload, devices, batch = FITTED
    [row] = [row for row in load_stevens() if (row.workload, row.devices, row.batch) == FITTED]

    def predicted(cluster: Cluster) -> float:
        return Predictor(stevens_profile(workload), cluster).predict(STRATEGY, devices, batch).epoch_seconds

    return fit_link(catalogued, "devices", [predicted], [row.epoch_seconds])


def stevens_tables() -> list[Table]:
    cluster = fitted_cluster().cluster
    rows = [row for row in load_stevens() if row.devices > 1 and (row.workload, row.devices, row.batch) != FITTED]
    predictors = {workload: Predictor(stevens_profile(workload), cluster) for workload in MODELS}
    profiled = [row for row in rows if -(-row.batch // row.devices) >= FEWEST_PROFILED]
    below = [row for row in rows if row not in profiled]
    fitted = (
        "one bandwidth, from the cell {} on {} GPUs at batch {}, left out; from its other batches of 20 or more the "
        "median is 1.4 to 2.3 %"
    ).format(*FITTED)
    return [
        Table(
            "stevens",
            [_cell(row, predictors[row.workload]) for row in profiled],
            "no",
            fitted,
            STEVENS.citation,
            {"median": 2.5, "p90": 6, "worst": 20},
            _by_model(profiled, predictors),
        ),
        Table(
            "stevens, < 10 clips",
            [_cell(row, predictors[row.workload]) for row in below],
            "no",
            fitted,
            STEVENS.citation,
            {"worst": 25},
            _by_model(below, predictors),
        ),
    ]


def _by_model(rows: list[StevensRow], predictors: dict[str, Predictor]) -> dict[str, Sequence[Cell]]:
    return {
        model: [_cell(row, predictor) for row in rows if row.workload == model]
        for model, predictor in predictors.items()
    }


def _cell(row: StevensRow, predictor: Predictor) -> Cell:
    prediction = predictor.predict(STRATEGY, row.devices, row.batch)
    [alone] = [
        each.epoch_seconds
        for each in load_stevens()
        if (each.workload, each.devices, each.batch) == (row.workload, 1, row.batch)
    ]
    profile = predictor.profile
    steps = -(-profile.samples_per_epoch // row.batch)
    moved = 2 * profile.parameter_bytes * (row.devices - 1) / row.devices * steps
    return Cell(
        label=f"{row.workload} {row.devices} GPUs batch {row.batch}",
        measured=row.epoch_seconds,
        predicted=prediction.epoch_seconds,
        low=prediction.epoch_low,
        high=prediction.epoch_high,
        alone=alone,
        baselines={
            "linear scaling": alone / row.devices,
            "bytes / specification": alone / row.devices + moved / (PCIE_GBps * 1e9),
        },
    )
