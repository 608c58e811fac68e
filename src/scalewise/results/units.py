"""Numbers as people read them; the units are in the text."""

from __future__ import annotations

import math


def seconds_text(seconds: float) -> str:
    """'812 µs', '4.2 ms', '1.53 s', '2 min 05 s'."""
    if math.isnan(seconds):
        return "-"
    # Limits lie where rounding would reach the next unit: '1 ms', not '1000 µs'.
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def bytes_text(count: float) -> str:
    """Binary units, as the study counts: '46.2 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(abs(count), 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
