"""This machine, its software and the data, stored with measurements; remarks on its load."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import psutil
import torch

from scalewise import __version__
from scalewise.core.errors import UserError
from scalewise.formats.store import DRIFT, INTERVAL_NOT_REACHED, VARIES, Environment, Measurement
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.devices import cpu_name
from scalewise.reporting.finding import listed


def current_environment(data: str, samples: int | None, conditions: Mapping[str, Any]) -> Environment:
    """Describe this machine and its software, with the data and the conditions of the measurements."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    versions = {
        "scalewise": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return Environment(
        hardware={
            "cpu": cpu_name(),
            "cores": len(allowed_cores()),
            VARIES: psutil.virtual_memory().total,
            "gpus": gpus,
        },
        versions=versions,
        data=data,
        samples_per_epoch=samples,
        conditions=dict(conditions),
    )


def check_same(folder: object, before: Environment, now: Environment) -> None:
    """Raise UserError if machine, software, data or conditions changed, so that cells would not be comparable.

    Data is not compared if a model failed before its data was loaded.
    """
    unknown = before.samples_per_epoch is None or now.samples_per_epoch is None
    for part, old in before.place.items():
        new = now.place[part]
        for key in {**old, **new} if part != "data" or not unknown else ():
            if old.get(key) != new.get(key):
                raise UserError(
                    f"{folder} holds measurements with different {part}: {key} was {old.get(key)!r} and is now "
                    f"{new.get(key)!r}; name another folder with --out (report and validate read several folders)"
                )


BUSY_FROM = 0.25
"""Fraction of the cores used by other programs from which on timings are approximate."""
OBSERVED_SECONDS = 0.5


def cores_in_use() -> float:
    """Measure how many of this process's allowed cores other programs use, just before an experiment.

    The load average would include the minute before, such as the installation at the start of `make demo`.
    """
    allowed, busy_percent = allowed_cores(), psutil.cpu_percent(OBSERVED_SECONDS, percpu=True)
    return sum(percent for core, percent in enumerate(busy_percent) if core in allowed) / 100


def load_remarks(used: float, cores: int) -> list[str]:
    """Return a remark if other programs used many cores."""
    if not _is_busy(used, cores):
        return []
    return [f"other programs used {used:.1f} of {cores} cores at the start, so CPU timings are approximate"]


def _is_busy(used: float, cores: int) -> bool:
    return used >= BUSY_FROM * cores


def not_begun_remarks(cells: int) -> list[str]:
    """Return a remark if cells were not started."""
    if not cells:
        return []
    were = "1 cell was" if cells == 1 else f"{cells} cells were"
    return [f"{were} not started for lack of time; run the same command again to measure the rest"]


def roughness(used: float, cores: int, measurements: Sequence[Measurement], not_begun: int = 0) -> str:
    """Return why a verdict is approximate, as an end of its sentence: '; approximate, because ...'; else nothing."""
    timed = [cell for cell in measurements if cell.status == "ok"]
    missing = len(measurements) - len(timed) + not_begun
    wide = sum(INTERVAL_NOT_REACHED in cell.flags for cell in timed)
    drifted = sum(DRIFT in cell.flags for cell in timed)
    reasons = [
        *([f"other programs used {used:.1f} of {cores} cores"] if _is_busy(used, cores) else []),
        *([f"{missing} of {len(measurements) + not_begun} cells were not measured"] if missing else []),
        *([f"the intervals of {wide} of {len(timed)} cells are wider than requested"] if wide else []),
        *([f"the machine's speed changed during {drifted} of {len(timed)} cells"] if drifted else []),
    ]
    return f"; approximate, because {listed(reasons)}" if reasons else ""
