"""How often a rank tells that it gets on."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

SECONDS_BETWEEN_REPORTS = 0.2


def at_intervals(tell: Callable[[], None]) -> Callable[[], None]:
    """To be called as often as one likes."""
    told = perf_counter()

    def tell_if_due() -> None:
        nonlocal told
        if (now := perf_counter()) - told > SECONDS_BETWEEN_REPORTS:
            tell()
            told = now

    return tell_if_due
