"""What a reader must know of the circumstances before trusting an experiment's figures."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from scalewise.findings.finding import listed
from scalewise.results.measurement import DRIFT, INTERVAL_NOT_REACHED, Measurement
from scalewise.session.cores import allowed_cores

BUSY_FROM = 0.25
"""Of all cores: with so much of them taken, ranks wait for their turn."""
LOOK_SECONDS = 0.5


def cores_in_use() -> float:
    """By other programs, of those that we may use, just before an experiment. The load average would still tell of the
    minute before: of the installation that `make demo` began with."""
    ours, busy_percent = allowed_cores(), psutil.cpu_percent(LOOK_SECONDS, percpu=True)
    return sum(percent for core, percent in enumerate(busy_percent) if core in ours) / 100


def load_remarks(used: float, cores: int) -> list[str]:
    """Where other programs had the cores too."""
    if not _is_busy(used, cores):
        return []
    return [f"other programs used {used:.1f} of {cores} cores when this began: take CPU timings as rough"]


def _is_busy(used: float, cores: int) -> bool:
    return used >= BUSY_FROM * cores


def not_begun_remarks(cells: int) -> list[str]:
    """Where the time did not suffice."""
    if not cells:
        return []
    were = "1 cell was" if cells == 1 else f"{cells} cells were"
    return [f"{were} not begun for lack of time; the same command goes on with them"]


def roughness(used: float, cores: int, measurements: Sequence[Measurement], not_begun: int = 0) -> str:
    """Why a verdict is rough, to be put behind it: '; rough, because ...'; nothing where nothing is in its way."""
    timed = [each for each in measurements if each.status == "ok"]
    missing = len(measurements) - len(timed) + not_begun
    wide = sum(INTERVAL_NOT_REACHED in each.flags for each in timed)
    drifted = sum(DRIFT in each.flags for each in timed)
    reasons = [
        *([f"other programs used {used:.1f} of {cores} cores"] if _is_busy(used, cores) else []),
        *([f"{missing} of {len(measurements) + not_begun} cells have no time"] if missing else []),
        *([f"{wide} of {len(timed)} cells did not reach their interval in the time given"] if wide else []),
        *([f"the machine's speed moved during {drifted} of {len(timed)} cells"] if drifted else []),
    ]
    return f"; rough, because {listed(reasons)}" if reasons else ""
