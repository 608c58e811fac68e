"""What a reader must know of the circumstances before trusting an experiment's figures."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.findings.finding import listed
from scalewise.results.measurement import DRIFT, INTERVAL_NOT_REACHED, Measurement

BUSY_FROM = 0.25
"""Of all cores: with so much of them taken, ranks wait for their turn."""


def load_remarks(load: float, cores: int) -> list[str]:
    """Where other programs had the cores too."""
    if not _is_busy(load, cores):
        return []
    return [f"the load was {load:.1f} on {cores} cores when this began: take CPU timings as rough"]


def _is_busy(load: float, cores: int) -> bool:
    return load >= BUSY_FROM * cores


def not_begun_remarks(cells: int) -> list[str]:
    """Where the time did not suffice."""
    if not cells:
        return []
    were = "1 cell was" if cells == 1 else f"{cells} cells were"
    return [f"{were} not begun for lack of time; the same command goes on with them"]


def roughness(load: float, cores: int, measurements: Sequence[Measurement], not_begun: int = 0) -> str:
    """Why a verdict is rough, to be put behind it: '; rough, because ...'; nothing where nothing is in its way."""
    timed = [each for each in measurements if each.status == "ok"]
    missing = len(measurements) - len(timed) + not_begun
    wide = sum(INTERVAL_NOT_REACHED in each.flags for each in timed)
    drifted = sum(DRIFT in each.flags for each in timed)
    reasons = [
        *([f"the machine was busy (load {load:.1f} on {cores} cores)"] if _is_busy(load, cores) else []),
        *([f"{missing} of {len(measurements) + not_begun} cells have no time"] if missing else []),
        *([f"{wide} of {len(timed)} cells did not reach their interval in the time given"] if wide else []),
        *([f"the machine's speed moved during {drifted} of {len(timed)} cells"] if drifted else []),
    ]
    return f"; rough, because {listed(reasons)}" if reasons else ""
