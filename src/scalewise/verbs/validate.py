"""`scalewise validate`: predictions against figures that were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from scalewise.advice.device import check_device
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.spec import unknown
from scalewise.validation.report import Validation
from scalewise.validation.table import Table
from scalewise.verbs.cluster_named import cluster_named

TABLES = {
    "stevens": "scalewise.validation.stevens:stevens_tables",
    "tensorflow": "scalewise.validation.tensorflow:tensorflow_tables",
    "t4": "scalewise.validation.t4:t4_tables",
    "small": "scalewise.validation.small:small_tables",
}
"""The published ones, and what predicts each."""


def validate(
    tables: Iterable[str] = TABLES,
    cluster: str | Cluster | None = None,
    on_table: Callable[[str], None] | None = None,
) -> Validation:
    """Predict measured figures from their one-device rows, and say how far off that is.

    A folder of measurements is a table, too; `cluster` says what links it was measured over, else they are fitted.

    >>> print(scalewise.validate(["stevens", "sweep"]))
    """
    chosen = list(tables)
    if not chosen:
        raise UserError(f"no table named; valid: {', '.join(TABLES)}, or a folder of measurements")
    for name in chosen:
        if name not in TABLES and not Path(name).is_dir():
            raise unknown("table", name, [*TABLES, "a folder of measurements"])
    if cluster is not None and not any(name not in TABLES for name in chosen):
        raise UserError("--cluster says over which links a folder was measured; name the folder, too")
    made: list[Table] = []
    for name in chosen:
        if on_table:
            on_table(name)
        if name in TABLES:
            module, _, function = TABLES[name].partition(":")
            made += getattr(import_module(module), function)()
        else:
            made.append(_own_table(Path(name), cluster))
    return Validation(made)


def _own_table(folder: Path, cluster: str | Cluster | None) -> Table:
    from scalewise.validation.own import fitted_table, given_table
    from scalewise.verbs.own import own_cells

    own = own_cells(folder)
    name = folder.resolve().name
    if cluster is None:
        return fitted_table(name, own.cells, own.skeleton)
    place, links = cluster_named(cluster)
    remedy = "name the cluster of the former, or none: links are then fitted to the folder"
    check_device(f"{folder} was measured on", own.skeleton.devices[0].name, place, remedy)
    return given_table(name, own.cells, place, links)
