"""What a reader must know of the circumstances before trusting an experiment's figures."""

from __future__ import annotations


def load_remarks(load: float, cores: int) -> list[str]:
    """Where other programs had the cores too."""
    if load < 0.5:
        return []
    return [f"the load was {load:.1f} on {cores} cores when this began: take CPU timings as rough"]


def not_begun_remarks(cells: int) -> list[str]:
    """Where the time did not suffice."""
    if not cells:
        return []
    were = "1 cell was" if cells == 1 else f"{cells} cells were"
    return [f"{were} not begun for lack of time; the same command goes on with them"]
