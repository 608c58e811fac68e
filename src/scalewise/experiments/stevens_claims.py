"""The study's findings, one by one: what it published, what was seen here, and whether it holds here too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from scalewise.findings.bounce import SMALLEST_JUMP, bounce
from scalewise.findings.cell import Series
from scalewise.findings.equality import equality
from scalewise.findings.finding import devices_text, listed
from scalewise.findings.law import inverse_batch_law
from scalewise.findings.saturation import WORTHWHILE, saturation
from scalewise.findings.speedup import Chokes, Speedup, best_speedups, chokes, speedups
from scalewise.findings.traffic import transfer_fit

LAW_MARGIN = 0.1
"""Timings that leave more open than this part of an epoch do not refute the law."""
VARIATIONS, SURE = 100, 0.95
"""Cells as they might have been timed as well, and the share of them in which a claim must hold."""
FEW_SAMPLES = 20
"""On a device. The study's conv has enough with 10 to 13, its linear with 125 to 400."""


@dataclass(frozen=True)
class Claim:
    """One finding of the study. `holds` is None where the cells measured here cannot say."""

    statement: str
    published: str
    here: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "cannot be told"}[self.holds]

    @property
    def sentence(self) -> str:
        return f"{self.statement}: {self.verdict} here ({self.here}); published: {self.published}"


Judge = Callable[[Series], tuple[str, bool | None]]
"""Words with numbers, and whether the claim holds in the series."""


def claims(here: Mapping[str, Series], published: Mapping[str, Series]) -> list[Claim]:
    """Of the two models under the study's strategy."""
    found = []
    for statement, workload, judge in CLAIMS:
        words, holds = judge(here[workload]) if workload in here else ("not measured", None)
        found.append(Claim(statement, judge(published[workload])[0], words, holds))
    return found


def _never_gains(series: Series) -> tuple[str, bool | None]:
    found = chokes(series)
    if found is None:
        return "only one device measured", None
    if found.gaining:
        return found.sentence, False
    return found.sentence, None if found.undecided or not found.choking else True


def _follows_the_law(series: Series) -> tuple[str, bool | None]:
    found = inverse_batch_law(series)
    if found is None:
        return "fewer than three batches measured", None

    def holds(cells: Series) -> bool:
        law = inverse_batch_law(cells)
        return law is not None and len(law.holding) == len(law.fits)

    return _told(found.sentence, series, holds, LAW_MARGIN)


def _equal(series: Series) -> tuple[str, bool | None]:
    found = equality(series)
    if found is None:
        return f"measured on {devices_text(series.device_counts)} only", None
    return found.sentence, True if found.equal else False if found.different else None


def _follows_the_bytes(series: Series) -> tuple[str, bool | None]:
    found = transfer_fit(series)
    if found is None:
        return "fewer than three amounts of transfer measured", None

    def holds(cells: Series) -> bool:
        fit = transfer_fit(cells)
        return fit is not None and fit.governs

    return _told(found.sentence, series, holds, LAW_MARGIN)


def _gains(series: Series) -> tuple[str, bool | None]:
    best, every = best_speedups(series), speedups(series)
    if best is None:
        return "only one device measured", None
    if {each.devices for each in every} == {each.devices for each in every if each.faster}:
        return best.sentence, True
    return best.sentence, None if any(each.speedup > 1 or each.undecided for each in best.best) else False


def _gains_least_at_the_smallest_batch(series: Series) -> tuple[str, bool | None]:
    every = speedups(series)
    if len({each.batch for each in every}) < 2:
        return "fewer than two batches measured", None
    smallest = min(each.batch for each in every)
    least = max((each for each in every if each.batch == smallest), key=lambda each: each.speedup)
    most = max((each for each in every if each.batch > smallest), key=lambda each: (each.at_least, each.speedup))
    open_part = math.hypot(least.uncertainty, most.uncertainty)
    told = abs(most.speedup - least.speedup) > open_part * max(most.speedup, least.speedup)
    return (
        f"at most {least.text} at batch {smallest}, up to {most.text} above",
        least.speedup < most.speedup if told else None,
    )


def _bounces(series: Series) -> tuple[str, bool | None]:
    found = bounce(series)
    if found is None:
        sure = _unless_noisy(series, SMALLEST_JUMP)
        return (
            f"no{'' if sure is False else ' sure'} jump between batches {series.batches[0]} and {series.batches[-1]}",
            sure,
        )
    if len(found.jumps) < 2:
        return f"{found.sentence}; more device counts are needed to tell", None
    return found.sentence, found.above is not None


def _saturates(series: Series) -> tuple[str, bool | None]:
    found = saturation(series)
    if found is None:
        return "fewer than three batches measured", None

    def holds(cells: Series) -> bool:
        points = saturation(cells)
        return points is not None and all(
            point.reached and point.batch_per_device <= FEW_SAMPLES for point in points.points
        )

    return _told(found.sentence, series, holds, WORTHWHILE)


def _told(words: str, series: Series, holds: Callable[[Series], bool], margin: float) -> tuple[str, bool | None]:
    """It holds if it also does where every time is another one of its interval, nearly always. What does not hold is
    refuted if the timings leave no more open than the margin."""
    noise = max(cell.uncertainty for cell in series.cells)
    if not noise:
        return words, holds(series)
    share = sum(holds(each) for each in _variations(series)) / VARIATIONS
    if holds(series) and share >= SURE:
        return words, True
    if not holds(series) and share <= 1 - SURE and _unless_noisy(series, margin) is False:
        return words, False
    open_question = "some cells were timed once" if math.isinf(noise) else f"timings are good to ± {noise:.0%}"
    return f"{words}; {open_question}, within which it holds in {share:.0%} of {VARIATIONS} trials", None


def _variations(series: Series) -> Iterator[Series]:
    """The same cells with times drawn from their intervals; the same ones each time they are asked for."""
    random = Random(0)
    for _ in range(VARIATIONS):
        cells = [
            replace(cell, epoch_seconds=cell.epoch_seconds * max(0.1, random.gauss(1, min(1.0, cell.uncertainty) / 2)))
            for cell in series.cells
        ]
        yield replace(series, cells=tuple(cells))


def _unless_noisy(series: Series, margin: float) -> bool | None:
    """False, as a claim is that the numbers refute; None where two timings leave more open than it turns on."""
    return None if any(2 * cell.uncertainty > margin for cell in series.cells) else False


CLAIMS: tuple[tuple[str, str, Judge], ...] = (
    ("linear never gains from more devices", "linear", _never_gains),
    ("linear's epoch is a floor plus a constant for every step", "linear", _follows_the_law),
    ("linear chokes on the network (its epoch follows the bytes moved)", "linear", _follows_the_bytes),
    ("linear takes the same time on 2, 3 and 4 devices", "linear", _equal),
    ("conv gains from more devices", "conv", _gains),
    ("conv gains least at the smallest batch", "conv", _gains_least_at_the_smallest_batch),
    ("conv bounces (seconds per sample jump at one share per device)", "conv", _bounces),
    ("conv saturates a device with few samples (larger batches do not help)", "conv", _saturates),
)


def headline(here: Mapping[str, Series], judged: Sequence[Claim]) -> str:
    """What was found, in one sentence."""
    parts = []
    if "linear" in here and (choking := chokes(here["linear"])):
        parts.append(_of_linear(choking, speedups(here["linear"])))
    if "conv" in here and best_speedups(here["conv"]):
        top = max(speedups(here["conv"]), key=lambda each: (each.faster, each.at_least, each.speedup))
        word = "gains" if top.faster else "may gain" if top.speedup > 1 else "does not gain"
        parts.append(f"conv {word} ({top.text} on {top.devices} devices at batch {top.batch})")
    found = " and ".join(parts) or "no cell on several devices can be compared with one device yet"
    return f"Found on {next(iter(here.values())).machine}: {found}{_count(judged)}"


def _of_linear(choking: Chokes, every: Sequence[Speedup]) -> str:
    if not choking.choking:
        word = "may or may not" if choking.undecided else "does not"
        return f"linear {word} choke ({choking.sentence})"
    worst, best = choking.choking[0], max(every, key=lambda each: (each.faster, each.at_least))
    longer = f"{worst.devices} devices take {1 / worst.speedup:.1f} times as long at batch {worst.batch}"
    gain = f", but gain {best.text} at batch {best.batch}" if best.faster else ""
    return f"linear chokes ({longer}{gain})"


def _count(judged: Sequence[Claim]) -> str:
    """'; of the study's 8 findings 5 hold here, 1 does not and 2 cannot be told'."""
    if not judged:
        return ""
    holding, refuted, untold = (sum(claim.holds is each for claim in judged) for each in (True, False, None))
    parts = [
        *([f"{holding} hold{'s' if holding == 1 else ''} here"] if holding else []),
        *([f"{refuted} do{'es' if refuted == 1 else ''} not{'' if holding else ' hold here'}"] if refuted else []),
        *([f"{untold} cannot be told"] if untold else []),
    ]
    return f"; of the study's {len(judged)} findings {listed(parts)}"
