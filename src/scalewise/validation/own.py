"""The user's own measurements, predicted from their one-device cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from scalewise.clusters.cluster import Cluster
from scalewise.prediction.calibrate import fit_cells
from scalewise.prediction.cells import TimedCell
from scalewise.prediction.predict import Predictor
from scalewise.strategies.single import Single
from scalewise.validation.cell import Cell
from scalewise.validation.table import InSample, Table, by

SPECIFIED_GBps = {"cpu": 10.0, "slice": 16.0, "cuda": 16.0}
"""Memory of one channel, and PCIe 3.0: what someone would take who has not measured."""


def given_table(name: str, cells: Sequence[TimedCell], cluster: Cluster, links: str) -> Table:
    """Nothing is fitted: the links are known."""
    return _table(name, cells, lambda _: cluster, "no", f"nothing; {links}")


def fitted_table(name: str, cells: Sequence[TimedCell], cluster: Cluster) -> Table:
    """The link of each part on the others: on the other workloads, else on the other batches, else on itself."""
    ways: list[tuple[Callable[[TimedCell], str], InSample, str]] = [
        (lambda cell: cell.cell.workload, "other models", "each workload's link on the other workloads"),
        (lambda cell: str(cell.cell.batch), "other cells", "each batch's link on the other batches"),
    ]
    for part, in_sample, words in ways:
        parts: dict[str, Sequence[TimedCell]] = _by(cells, part)
        others = {key: [cell for cell in cells if part(cell) != key and _can_fit(cell)] for key in parts}
        if all(others.values()):
            clusters = {key: fit_cells(cluster, chosen) for key, chosen in others.items()}
            return _table(name, cells, lambda cell: clusters[part(cell)], in_sample, words)  # noqa: B023 - called at once
    chosen = [cell for cell in cells if _can_fit(cell)]
    fitted = fit_cells(cluster, chosen) if chosen else cluster
    return _table(name, cells, lambda _: fitted, "yes", "one bandwidth, on these very cells")


def _by(cells: Sequence[TimedCell], part: Callable[[TimedCell], str]) -> dict[str, Sequence[TimedCell]]:
    ordered = sorted(cells, key=part)
    return {key: list(group) for key, group in groupby(ordered, part)}


def _can_fit(cell: TimedCell) -> bool:
    return cell.cell.hosts == 1 or cell.is_across


def _table(
    name: str, cells: Sequence[TimedCell], cluster: Callable[[TimedCell], Cluster], in_sample: InSample, fitted: str
) -> Table:
    made = [_cell(cell, cluster(cell)) for cell in cells]
    return Table(
        name,
        made,
        in_sample,
        fitted,
        "your own measurements",
        parts=by(made, [f"{cell.cell.workload}, {cell.cell.strategy}" for cell in cells]),
    )


def _cell(timed: TimedCell, cluster: Cluster) -> Cell:
    cell = timed.cell
    predictor = Predictor(timed.profile, timed.place_on(cluster))
    made = predictor.predict(timed.strategy, cell.devices, cell.batch)
    alone = predictor.simulate(Single(), 1, cell.batch).step_seconds
    linear = alone / cell.devices
    specified = SPECIFIED_GBps[cell.device_kind]
    if cell.link is not None:
        specified = next(link.GBps for link in predictor.cluster.links if link.between == "hosts")
    moved = cell.bytes_per_step.busiest / 2 if cell.bytes_per_step else 0
    joined = f" on {cell.hosts} hosts at {cell.link}" if cell.hosts > 1 else ""
    return Cell(
        label=f"{cell.workload}, {cell.strategy} on {cell.devices} devices{joined}, batch {cell.batch}",
        measured=timed.seconds,
        predicted=made.seconds,
        low=made.low,
        high=made.high,
        alone=alone,
        baselines={"linear scaling": linear, "bytes / specification": linear + moved / (specified * 1e9)},
        rivals=f"{cell.workload} on {cell.devices}{joined}, batch {cell.batch}",
    )
