"""A folder of measurements, ready to be predicted or to fit links from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.cells import TimedCell, timed_cells
from scalewise.prediction.skeleton import skeleton
from scalewise.results.environment import Environment
from scalewise.results.measurement import Measurement
from scalewise.results.profile import ProfileDocument
from scalewise.results.store import Store


@dataclass(frozen=True)
class Own:
    """Cells on several devices with the profiles that their one-device neighbours make."""

    cells: list[TimedCell]
    environments: dict[str, Environment]

    @property
    def skeleton(self) -> Cluster:
        """The machine, without a word on its links."""
        first = self.cells[0].cell
        return skeleton(
            self.environments[first.environment], first.device_kind, max(cell.cell.devices for cell in self.cells)
        )


def own_cells(folder: Path, known: ProfileDocument | None = None) -> Own:
    """`known` is a profile already at hand, of the same workload or of another."""
    environments = Store.environments(folder)

    def outline(cell: Measurement) -> ProfileDocument:
        if known is not None and known.workload == cell.workload:
            return known
        conditions = environments[cell.environment].conditions
        from scalewise.verbs.outline import outline_of

        return outline_of(cell.workload, conditions.get("input"), conditions.get("classes"))

    samples = {key: each.samples_per_epoch for key, each in environments.items() if each.samples_per_epoch}
    cells = timed_cells(Store.read(folder), outline, samples)
    if not cells:
        raise UserError(
            f"{folder} has no cell on several devices beside one on one device; measure both, as in: scalewise measure "
            f"linear --strategy single --strategy mirrored --devices 1,2 --out {folder}"
        )
    kinds = {cell.cell.device_kind for cell in cells}
    if len(kinds) > 1:
        raise UserError(f"{folder} mixes {' and '.join(sorted(kinds))} devices; keep them in folders of their own")
    return Own(cells, environments)
