"""`scalewise advise --calibrate DIR`: links fitted from a few measured cells."""

from __future__ import annotations

from pathlib import Path

from scalewise.advice.device import same_device
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.calibrate import fit_cells
from scalewise.results.profile import ProfileDocument
from scalewise.verbs.own import own_cells


def calibrated(cluster: Cluster, folder: Path, known: ProfileDocument) -> tuple[Cluster, str]:
    """The cluster with links that explain what was measured there, and a few words on that."""
    own = own_cells(folder, known)
    device, measured = cluster.devices[0].name, own.skeleton.devices[0].name
    if not same_device(device, measured):
        raise UserError(f"{folder} was measured on {measured}, but {cluster.name} has {device}: its links are others")
    fitted = fit_cells(cluster, own.cells)
    cells = f"{len(own.cells)} cell{'s' if len(own.cells) > 1 else ''}"
    return fitted, f"links fitted to {cells} of {folder}"
