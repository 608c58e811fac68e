"""`scalewise advise --calibrate DIR`: links fitted from a few measured cells."""

from __future__ import annotations

from pathlib import Path

from scalewise.advice.device import same_device
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.calibrate import fit_cells
from scalewise.results.profile import ProfileDocument, StepCost
from scalewise.verbs.own import own_cells


def calibrated(cluster: Cluster, folder: Path, known: ProfileDocument) -> tuple[Cluster, str, ProfileDocument]:
    """The cluster with links that explain what was measured there, a few words on that, and the profile: where one step
    was all that was known, with what one device took there at other batches."""
    own = own_cells(folder, known)
    device, measured = cluster.devices[0].name, own.skeleton.devices[0].name
    if not same_device(device, measured):
        raise UserError(f"{folder} was measured on {measured}, but {cluster.name} has {device}: its links are others")
    fitted = fit_cells(cluster, own.cells)
    cells = f"{len(own.cells)} cell{'s' if len(own.cells) > 1 else ''}"
    alone = next((each.profile for each in own.cells if each.cell.workload == known.workload), None)
    if not known.least_seconds or alone is None:
        return fitted, f"links fitted to {cells} of {folder}", known
    batches = {step.batch for step in alone.steps}
    steps = sorted([*alone.steps, *(step for step in known.steps if step.batch not in batches)], key=_batch)
    timed = known.model_copy(update={"steps": tuple(steps), "least_seconds": 0.0})
    return fitted, f"links fitted to {cells} of {folder}, and what one device took there", timed


def _batch(step: StepCost) -> int:
    return step.batch
