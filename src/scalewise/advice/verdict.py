"""Add devices or not, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.advice.break_even import BreakEven, break_even
from scalewise.advice.changes import Change, changes_of, seconds_if_it_fits
from scalewise.advice.reason import Reason
from scalewise.advice.rows import Row
from scalewise.prediction.predict import Bottleneck, Predictor
from scalewise.strategies.strategy import batch_shares

WORTH = 1.05
"""The least speed-up for which devices are added."""


@dataclass(frozen=True)
class Verdict:
    add_devices: bool
    best: Row
    bottleneck: Bottleneck
    reason: str
    break_even: BreakEven
    changes: tuple[Change, ...]
    sure: bool = True
    """Whether the whole interval says that devices are to be added; one that stays is not asked."""

    def to_json(self) -> dict[str, Any]:
        return {
            "add_devices": self.add_devices,
            "sure": self.sure,
            "best": self.best.to_json(),
            "bottleneck": self.bottleneck,
            "reason": self.reason,
            "break_even": {"batch": self.break_even.batch, "bandwidth_GBps": self.break_even.bandwidth_GBps},
            "changes": [each.to_json() for each in self.changes],
        }


def verdict_of(predictor: Predictor, rows: Sequence[Row]) -> Verdict:
    """Over the rows of one batch, the first of which is one device; only exact strategies are advised."""
    alone = rows[0]
    exact = [row for row in rows[1:] if row.prediction.strategy.exact]
    nothing = BreakEven(None, None)
    if not exact:
        return Verdict(False, alone, alone.prediction.bottleneck, Reason(predictor, alone, alone).of_one(), nothing, ())
    fitting = [row for row in exact if row.prediction.fits]
    if not fitting and not alone.prediction.fits:
        least = min(exact, key=lambda row: row.prediction.memory_bytes)
        smaller = _smaller_that_fits(predictor, exact)
        return Verdict(False, alone, "memory", Reason(predictor, alone, least).too_large(smaller), nothing, ())
    fastest = _best(fitting) if fitting else alone
    add = fastest is not alone and (not alone.prediction.fits or (fastest.gain or 0) > WORTH)
    several = fastest if add else _explained(exact)
    made = several.prediction
    even = break_even(predictor, made.strategy, made.devices, made.batch, several.shares)
    reason = Reason(predictor, alone, several)
    changes = changes_of(predictor, alone, several, {row.prediction.strategy.name for row in rows})
    faster = [change for change in changes if change.strategy and WORTH * change.seconds < made.seconds]
    other = next((change for change in faster if (change.speedup or 0) > WORTH), None)
    return Verdict(
        add,
        several if add else alone,
        made.bottleneck,
        reason.to_add(even, WORTH) if add else reason.to_stay(even, WORTH, several is _best(exact), other),
        even,
        changes,
        reason.sure or not add,
    )


def _smaller_that_fits(predictor: Predictor, rows: Sequence[Row]) -> tuple[int, Row] | None:
    """Half the batch, or a quarter, ..., and who is quickest with it."""
    batch = rows[0].prediction.batch // 2
    while batch:
        found: list[tuple[float, int]] = []
        for number, row in enumerate(rows):
            seconds = seconds_if_it_fits(predictor, row.prediction.strategy, row.prediction.devices, batch)
            if seconds is not None:
                found.append((seconds, number))
        if found:
            return batch, rows[min(found)[1]]
        batch //= 2
    return None


def _explained(rows: Sequence[Row]) -> Row:
    """Why several are no faster is seen where they share out the batch: in turn they lose little, and cannot gain."""
    sharing = [row for row in rows if _shares_out(row)] or rows
    return _best([row for row in sharing if row.prediction.fits] or sharing)


def _shares_out(row: Row) -> bool:
    made = row.prediction
    return batch_shares(made.strategy, made.devices) == made.devices


def _best(rows: Sequence[Row]) -> Row:
    """The fastest; what is predicted to gain less than devices must is no reason for more of them, nor to leave torch's
    own way."""
    least = min(map(_sample_seconds, rows))
    near = [row for row in rows if _sample_seconds(row) < WORTH * least]
    fewest = min(row.prediction.devices for row in near)
    near = [row for row in near if row.prediction.devices == fewest]
    usual = [row for row in near if row.name == "mirrored"]
    return usual[0] if usual else min(near, key=_sample_seconds)


def _sample_seconds(row: Row) -> float:
    return row.prediction.seconds / row.prediction.batch
