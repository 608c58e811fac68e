"""All findings of a series, in the order in which they are told."""

from __future__ import annotations

from scalewise.findings.bounce import bounce
from scalewise.findings.cell import Series
from scalewise.findings.equality import equality
from scalewise.findings.finding import Finding
from scalewise.findings.floor import loading_floor
from scalewise.findings.law import inverse_batch_law
from scalewise.findings.saturation import saturation
from scalewise.findings.speedup import best_speedups, chokes
from scalewise.findings.traffic import traffic, transfer_fit


def findings_of(series: Series) -> list[Finding]:
    """Who chokes and who gains first, then why."""
    found: list[Finding | None] = [
        chokes(series),
        best_speedups(series),
        equality(series),
        inverse_batch_law(series),
        loading_floor(series),
        bounce(series),
        saturation(series),
        traffic(series),
        transfer_fit(series),
    ]
    return [finding for finding in found if finding is not None]
