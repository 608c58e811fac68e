"""Strategies that have no row in the table, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LeftOut:
    strategy: str
    devices: int
    why: str


def left_out_text(left_out: Sequence[LeftOut], shown: Collection[str]) -> str:
    """'Left out: tensor, hybrid (...); layers on 8, 16 (...).' Each with its reason on the fewest devices."""
    counts: dict[str, list[int]] = defaultdict(list)
    whys: dict[str, str] = {}
    for each in left_out:
        whys.setdefault(each.strategy, _short(each.why))
        if each.devices not in counts[each.strategy]:
            counts[each.strategy].append(each.devices)
    together: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, why in whys.items():
        where = f" on {', '.join(map(str, counts[name]))}" if name in shown else ""
        together[where, why].append(name)
    parts = [f"{', '.join(names)}{where} ({why})" for (where, why), names in together.items()]
    return f"Left out: {'; '.join(parts)}." if parts else ""


def _short(why: str) -> str:
    """What is wrong; what else could be asked is for those who asked for it."""
    return why.partition(";")[0].partition(" (")[0]
