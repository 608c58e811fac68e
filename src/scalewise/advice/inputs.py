"""Find a cluster by name, check its device, and read a folder of measurements of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scalewise.core.errors import UserError
from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.formats.store import Environment, Measurement, Store
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.predict.calibration import TimedCell, calibrate_cells, skeleton, timed_cells
from scalewise.predict.link_factors import LinkCalibration

VENDOR_WORDS = {"nvidia", "tesla", "geforce", "quadro", "sxm2", "sxm4", "sxm5", "pcie", "one", "gk210"}
"""Words in the name of a device that do not tell its model apart."""
CORE = "one core of "


def check_device(measured: str, device: str, cluster: Cluster, remedy: str = "") -> None:
    """Raise UserError if `device` is not the device of the cluster.

    `measured`: the beginning of the message, such as 'the profile of conv was measured on'. `remedy`: what to do
    instead; by default, to give a measurement of the cluster's device.
    """
    name = cluster.devices[0].name
    if not same_device(device, name):
        default = f"give a profile of {name} as --profile, or one step time as --step-time SECONDS@BATCH"
        raise UserError(f"{measured} {device}, but the devices of {cluster.name} are {name}; {remedy or default}")


def counted(device: str, count: int = 1) -> str:
    """Return 'one GTX 1080 Ti' or '4 x GTX 1080 Ti', 'one core of AMD EPYC' or '2 cores of AMD EPYC'."""
    if count == 1:
        return device if device.startswith(CORE) else f"one {device}"
    if device.startswith(CORE):
        return f"{count} cores of {device.removeprefix(CORE)}"
    return f"{count} x {device}"


def same_device(one: str, other: str) -> bool:
    """Return whether two names mean the same model: 'NVIDIA GeForce GTX 1080 Ti' is 'GTX 1080 Ti'."""
    return _words(one) == _words(other)


def _words(name: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in VENDOR_WORDS and word[-2:] != "gb"}


HERE = "here"
"""Name of this machine as a cluster."""


def cluster_named(cluster: str | Cluster, on_progress: Callable[[str], None] | None = None) -> tuple[Cluster, str]:
    """Return the cluster and a description of its links. 'here' is this machine; its links are measured once."""
    if not isinstance(cluster, str):
        return cluster, "links as given"
    if cluster != HERE:
        return cluster_of(cluster), f"links of {cluster}"
    from scalewise.probe.measure_links import cluster_here

    return cluster_here(on_progress)


@dataclass(frozen=True)
class MeasuredFolder:
    """Measured cells on several devices, each with a profile from the single-device cells."""

    cells: list[TimedCell]
    environments: dict[str, Environment]
    """Environments by their id."""

    @property
    def skeleton(self) -> Cluster:
        """Cluster of the measured machine; the bandwidths of its links are unknown."""
        first = self.cells[0].cell
        return skeleton(
            self.environments[first.environment], first.device_kind, max(cell.cell.devices for cell in self.cells)
        )


def read_measured_folder(folder: Path, known: ProfileDocument | None = None) -> MeasuredFolder:
    """Read the cells. `known`: a profile whose layers are used for cells of its workload."""
    environments = Store.environments(folder)

    def outline(cell: Measurement) -> ProfileDocument:
        if known is not None and known.workload == cell.workload:
            return known
        conditions = environments[cell.environment].conditions
        from scalewise.probe.untimed_profile import outline_of

        return outline_of(cell.workload, conditions.get("input"), conditions.get("classes"))

    samples = {
        key: environment.samples_per_epoch for key, environment in environments.items() if environment.samples_per_epoch
    }
    cells = timed_cells(Store.read(folder), outline, samples)
    if not cells:
        raise UserError(
            f"{folder} has no cell on several devices with a matching cell on one device; measure both, as in: "
            f"scalewise measure linear --strategy single --strategy mirrored --devices 1,2 --out {folder}"
        )
    kinds = {cell.cell.device_kind for cell in cells}
    if len(kinds) > 1:
        raise UserError(f"{folder} mixes {' and '.join(sorted(kinds))} devices; measure them into separate folders")
    return MeasuredFolder(cells, environments)


def calibrated(cluster: Cluster, folder: Path, known: ProfileDocument) -> tuple[LinkCalibration, str, ProfileDocument]:
    """Calibrate the cluster's links to the measurements of a folder.

    Returns the calibration, a description of its links, and the profile. If the profile is a single step time, the
    folder's single-device cells of its workload are added to it.
    """
    measurements = read_measured_folder(folder, known)
    device, measured = cluster.devices[0].name, measurements.skeleton.devices[0].name
    if not same_device(device, measured):
        raise UserError(
            f"{folder} was measured on {measured}, but the devices of {cluster.name} are {device}; give a folder "
            "that was measured on this cluster"
        )
    calibration = calibrate_cells(cluster, measurements.cells)
    cells = f"{len(measurements.cells)} cell{'s' if len(measurements.cells) > 1 else ''}"
    alone = next((cell.profile for cell in measurements.cells if cell.cell.workload == known.workload), None)
    if not known.least_seconds or alone is None:
        return calibration, f"links calibrated to {cells} of {folder}", known
    batches = {step.batch for step in alone.steps}
    steps = sorted([*alone.steps, *(step for step in known.steps if step.batch not in batches)], key=_batch)
    timed = known.model_copy(update={"steps": tuple(steps), "least_seconds": 0.0})
    return calibration, f"links calibrated to {cells} of {folder}, and its step times of one device", timed


def _batch(step: StepCost) -> int:
    return step.batch
