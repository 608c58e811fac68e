"""What would change the verdict, each priced by the simulator that made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scalewise.advice.loading import OPTION, WORKERS, loaded_beside
from scalewise.advice.rows import Row, one_device_seconds, reaches, strategy_text, twin_of
from scalewise.errors import UserError
from scalewise.prediction.predict import Prediction, Predictor
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.registry import STRATEGIES
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy

TIMES = 4
"""As many times the batch, and parts of an accumulated one."""
LARGE_MB = 100.0


@dataclass(frozen=True)
class Change:
    """Something that could be done, and fits, and the speed-up over one device that it would bring."""

    change: str
    speedup: float | None
    """At the same batch; None where that does not fit one device."""
    seconds: float
    """Of a step; of one sample's share of it where steps differ in size, times the batch."""
    exact: bool = True
    """Whether the weights would be those of one device."""
    strategy: str = ""
    """That nobody asked about, if it is one."""

    def to_json(self) -> dict[str, Any]:
        return {"change": self.change, "speedup": self.speedup, "step_seconds": self.seconds, "exact": self.exact}


def changes_of(predictor: Predictor, alone: Row, several: Row, looked_at: set[str]) -> tuple[Change, ...]:
    """The best first; `looked_at` are strategies that the table has already."""
    made = several.prediction
    one: float | None = None
    if alone.prediction.fits:
        one = alone.prediction.seconds * made.batch / alone.prediction.batch  # where devices bring their own samples
    found = [
        *_other_strategies(predictor, made, one, looked_at),
        *_mirrored(predictor, made, one),
        *_larger_batch(predictor, several, one),
        _accumulated(made, one),
        *_loaded_beside(predictor, alone.prediction, made, one),
    ]
    return tuple(sorted(found, key=lambda change: (-(change.speedup or 0.0), change.seconds)))


def _other_strategies(
    predictor: Predictor, made: Prediction, one: float | None, looked_at: set[str]
) -> Iterator[Change]:
    """The best exact one that nobody asked about, where it is better."""
    best: tuple[float, str] | None = None
    for name, kind in STRATEGIES.items():
        strategy: Strategy = kind()
        open_question = strategy.exact and not {name, twin_of(strategy, made.devices)} & {*looked_at, "single"}
        within = open_question and reaches(strategy, predictor.cluster, made.devices)
        seconds = seconds_if_it_fits(predictor, strategy, made.devices, made.batch) if within else None
        if seconds is not None and seconds < (best[0] if best else made.seconds):
            best = seconds, strategy_text(strategy)
    if best:
        yield Change(f"the strategy {best[1]}", _over(one, best[0]), best[0], strategy=best[1])


def _mirrored(predictor: Predictor, made: Prediction, one: float | None) -> Iterator[Change]:
    options: list[tuple[str, Strategy]] = [
        ("mirrored with fp16 gradients (not exact)", Mirrored(compress="fp16")),
        (f"mirrored with buckets of {LARGE_MB:g} MB", Mirrored(bucket_MB=LARGE_MB)),
    ]
    for what, strategy in options:
        seconds = seconds_if_it_fits(predictor, strategy, made.devices, made.batch)
        if seconds is not None:
            yield Change(what, _over(one, seconds), seconds, strategy.exact)


def _larger_batch(predictor: Predictor, several: Row, one: float | None) -> Iterator[Change]:
    """Over one device at that batch; at the one asked about where it has no room for more."""
    made = several.prediction
    batch = TIMES * made.batch
    larger = seconds_if_it_fits(predictor, made.strategy, made.devices, batch)
    if larger is None:
        return
    each = -(-batch // several.shares)
    over = "with as many" if several.grown else "at that batch"
    single: float | None = None
    if predictor.predict(Single(), 1, each, samples=each).fits:
        single = one_device_seconds(predictor, batch, several.shares)
    elif one is not None:
        single, over = TIMES * one, "as it is, which has no room for more"
    what = f"{each:,} samples on each" if several.grown else f"a batch of {batch:,}"
    told = f"over one device {over}; " if single is not None else ""
    yield Change(f"{what} ({told}learns otherwise)", _over(single, larger), larger / TIMES, exact=False)


def _accumulated(made: Prediction, one: float | None) -> Change:
    """All but the last part compute without a word to the others."""
    computing = sum(made.phases.get(phase, 0.0) for phase in ("load", "forward", "loss", "backward"))
    seconds = (made.seconds + (TIMES - 1) * computing) / TIMES
    what = f"accumulating gradients over {TIMES} batches (as a batch of {TIMES * made.batch:,}; learns otherwise)"
    return Change(what, _over(one, seconds), seconds, exact=False)


def _loaded_beside(predictor: Predictor, alone: Prediction, made: Prediction, one: float | None) -> Iterator[Change]:
    """One device with loading workers, too: several with them are to be compared with that."""
    single, spread = loaded_beside(predictor, alone) if alone.fits else None, loaded_beside(predictor, made)
    if single is not None:
        seconds = single * made.batch / alone.batch
        yield Change(f"one device with {WORKERS} loading workers ({OPTION})", _over(one, seconds), seconds)
    if spread is not None:
        over = f"; {seconds / spread:.2f} times one device with as many" if single is not None else ""
        what = f"{WORKERS} loading workers for each of {made.devices} devices ({OPTION}{over})"
        yield Change(what, _over(one, spread), spread)


def _over(one: float | None, seconds: float) -> float | None:
    return None if one is None else one / seconds


def seconds_if_it_fits(predictor: Predictor, strategy: Strategy, devices: int, batch: int) -> float | None:
    """None where the strategy cannot be laid out so, or does not fit."""
    try:
        made = predictor.predict(strategy, devices, batch, samples=batch)
    except UserError:
        return None
    return made.seconds if made.fits else None
