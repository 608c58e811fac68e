"""Score predictions on a CSV file of measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scalewise.advice.given_figures import MeasuredFile, TimedRow, lines_text
from scalewise.advice.one_device import profile_of_steps
from scalewise.core.errors import UserError
from scalewise.hardware.cluster import Cluster
from scalewise.predict.link_factors import calibrate_links
from scalewise.predict.predictor import Predictor
from scalewise.validation.scores import Cell, Table, by

PCIE3_GBps = 15.75
"""Bandwidth of the naive rule."""


def measured_file_tables(path: Path, cluster: Cluster) -> list[Table]:
    """Predict the rows on several devices from the one-device rows of their models.

    The second table has the rows on more than two devices, predicted with links calibrated to those on two devices; it
    is missing if one of both kinds is.
    """
    timed, left_out = MeasuredFile.read(path).timed_rows(partial(profile_of_steps, cluster))
    if not timed:
        raise UserError(
            f"{path} has no row on several devices with a one-device row of the same model and precision",
            "add rows with devices = 1",
        )
    note = f"nothing; links of {cluster.name}"
    note += f"; {lines_text(left_out)} left out, without a one-device row of the model" if left_out else ""
    tables = [_table(path.name, timed, cluster, path, note)]
    two, more = [row for row in timed if row.row.devices == 2], [row for row in timed if row.row.devices > 2]
    if two and more:
        calibration = calibrate_links(cluster, [row.measured_step(path) for row in two])
        factors = ", ".join(f"{factor.link_class} {factor.factor:.2f}" for factor in calibration.factors)
        note = f"factors of the links, to the rows on two devices, which are not scored ({factors})"
        tables.append(_table(f"{path.name}, calibrated", more, calibration.cluster, path, note))
    return tables


def _table(name: str, rows: Sequence[TimedRow], cluster: Cluster, path: Path, fitted: str) -> Table:
    cells = [_cell(row, row.place_on(cluster, path)) for row in rows]
    return Table(name, cells, "no", fitted, str(path), parts=by(cells, [row.row.model for row in rows]))


def _cell(timed: TimedRow, cluster: Cluster) -> Cell:
    row, profile = timed.row, timed.profile
    prediction = Predictor(profile, cluster).predict(
        timed.strategy, row.devices, row.batch, timed.layout(), samples=row.batch
    )
    moved = 2 * profile.parameter_bytes * (row.devices - 1) / row.devices
    linear = timed.linear_seconds
    return Cell(
        label=row.label,
        measured=row.seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=linear * row.devices,
        devices=row.devices,
        baselines={"linear scaling": linear, "bytes / specification": linear + moved / (PCIE3_GBps * 1e9)},
    )
