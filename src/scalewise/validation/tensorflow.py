"""TensorFlow 2017, from its one-GPU rows: links of the catalogue, or fitted on the other models of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Between, Cluster
from scalewise.prediction.calibrate import fit_link
from scalewise.prediction.predict import Predictor
from scalewise.published.models import outlined_profile
from scalewise.published.tensorflow import TENSORFLOW as SOURCE
from scalewise.published.tensorflow import TensorFlowRow, load_tensorflow
from scalewise.simulation.conduct import TENSORFLOW
from scalewise.simulation.layout import Layout
from scalewise.validation.cell import Cell
from scalewise.validation.table import Table, by
from scalewise.validation.variables import OnHost, strategy_for

SPECIFIED_GBps = {"8x-p100-nvlink": 20.0, "8x-k80": 15.75, "8x-k80-gce": 15.75}
"""NVLink 1.0 and PCIe 3.0 x16 as sold."""
SPECIFIED_NETWORK_GBps = 1.25
ROUNDS = 2
LINKS: dict[str, Between] = {
    "variables on host": "host-device",
    "variables on devices": "devices",
    "replicated by NCCL": "devices",
    "replicated by copies": "devices",
    "distributed servers": "hosts",
}
"""What the variables cross."""
Alone = dict[tuple[str, ...], float]
"""One-GPU seconds of a step, by series."""


def tensorflow_tables() -> list[Table]:
    return [catalogue_table(), fitted_table()]


def _measured() -> tuple[list[TensorFlowRow], Alone]:
    """Rows of several devices whose series has one of one device, and those."""
    alone = {row.series: row.step_seconds for row in load_tensorflow() if row.devices == 1}
    return [row for row in load_tensorflow() if row.devices > 1 and row.series in alone], alone


def catalogue_table() -> Table:
    rows, alone = _measured()
    cells = [_cell(row, alone[row.series], _cluster(row)) for row in rows]
    return Table(
        "tensorflow",
        cells,
        "partly",
        "links are the catalogue's; overlap and slowdown of TensorFlow were read off this table",
        SOURCE.citation,
        {"median": 4, "p90": 10},
        by(cells, [row.variables for row in rows]),
    )


def fitted_table() -> Table:
    """Rows of whose machine and variables other models were measured as well."""
    rows, alone = _measured()
    cells: list[Cell] = []
    names: list[str] = []
    for machine, variables, model in sorted({(row.machine, row.variables, row.model) for row in rows}):
        series = [row for row in rows if (row.machine, row.variables) == (machine, variables)]
        fitting = _one_of_each([row for row in series if row.model != model])
        if not fitting:
            continue
        GBps = _fit(fitting, alone)
        for row in series:
            if row.model == model:
                # A fit on others' steps says less than one on one's own.
                cluster = replace(_cluster(row).with_link(LINKS[variables], GBps), knowledge="catalogue")
                cells.append(_cell(row, alone[row.series], cluster))
                names.append(variables)
    return Table(
        "tensorflow, fitted",
        cells,
        "other models",
        "each machine's link on its other models; overlap and slowdown as above",
        SOURCE.citation,
        {"median": 3.5},
        by(cells, names),
    )


def _one_of_each(rows: list[TensorFlowRow]) -> list[TensorFlowRow]:
    """The largest synthetic run of every model."""
    largest: dict[str, TensorFlowRow] = {}
    for row in sorted(rows, key=lambda row: (row.data != "files", row.devices)):
        largest[row.model] = row
    return list(largest.values())


def _fit(rows: list[TensorFlowRow], alone: Alone) -> float:
    between = LINKS[rows[0].variables]

    def cell(row: TensorFlowRow) -> Callable[[Cluster], float]:
        def predicted(cluster: Cluster) -> float:
            GBps = next(link.GBps for link in cluster.links if link.between == between)
            tried = _cluster(row).with_link(between, GBps)
            layout = Layout((row.devices // row.hosts,) * row.hosts)
            predictor = _predictor(row, alone[row.series], tried)
            batch = row.devices * row.batch_per_device
            return predictor.simulate(strategy_for(row.variables, row.hosts), row.devices, batch, layout).step_seconds

        return predicted

    return fit_link(_cluster(rows[0]), between, [cell(row) for row in rows], [row.step_seconds for row in rows]).GBps


def _cluster(row: TensorFlowRow) -> Cluster:
    return replace(cluster_of(row.machine), hosts=row.hosts)


def _predictor(row: TensorFlowRow, alone: float, cluster: Cluster) -> Predictor:
    """One GPU with its variables on the host fetches them, too: what is left of its step is compute."""
    compute = alone
    for _ in range(ROUNDS):
        profile = outlined_profile(row.model, cluster.devices[0].name, {row.batch_per_device: compute})
        predictor = Predictor(profile, cluster, TENSORFLOW)
        if row.variables != "variables on host":
            return predictor
        compute *= alone / predictor.simulate(OnHost(), 1, row.batch_per_device, Layout((1,))).step_seconds
    return predictor


def _cell(row: TensorFlowRow, alone: float, cluster: Cluster) -> Cell:
    predictor = _predictor(row, alone, cluster)
    batch = row.devices * row.batch_per_device
    layout = Layout((row.devices // row.hosts,) * row.hosts)
    prediction = predictor.predict(strategy_for(row.variables, row.hosts), row.devices, batch, layout, samples=batch)
    moved = 2 * predictor.profile.parameter_bytes * (row.devices - 1) / row.devices
    specified = SPECIFIED_NETWORK_GBps if row.hosts > 1 else SPECIFIED_GBps[row.machine]
    return Cell(
        label=f"{row.model} {row.variables}, {row.devices} GPUs of {row.machine}, {row.batch_per_device} each",
        measured=row.step_seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=alone * row.devices,
        baselines={"linear scaling": alone, "bytes / specification": alone + moved / (specified * 1e9)},
        rivals=f"{row.model}, {row.devices} GPUs of {row.machine}, {row.batch_per_device} each, {row.data}",
    )
