"""What one visit to a cell timed, and what several of them say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from scalewise.measuring.spread import Spread, usual_spread
from scalewise.phases import shared_out
from scalewise.results.statistics import Interval, interval_of

WARM_UP_STEPS, GRAPH_WARM_UP_STEPS = 3, 6
"""The optimizer's state comes with the first step, DDP's own buckets with the second: the first three of conv on two
ranks take 1.09, 1.06 and 1.06 times as long as those that follow (medians of 25 visits)."""
WARM_UP_SECONDS = 0.05
FEWEST_FOR_LIKENESS, MOST_ALIKE = 4, 0.8
"""Blocks from which on their correlation is estimated, and how much of it is believed."""

LEAST_ERRORS = 1.3
"""Standard errors by which an interval reaches at least, by the noise of the steps alone."""
FROM_MEDIAN_STRAY, OF_A_MEDIAN = 1.483, 1.253
"""From the median distance to a standard deviation; from that of a mean to that of a median."""


@dataclass(frozen=True)
class Block:
    """Some steps of one cell in a row."""

    seconds: list[float]
    """Of steps of whole batches, after the warm-up."""
    short: list[float] = field(default_factory=list)
    """Of the steps that end an epoch with what is left."""
    first: list[float] = field(default_factory=list)
    """Of the steps that start an epoch, but for the block's own first."""
    between: list[float] = field(default_factory=list)
    """What each whole epoch took beside its steps."""
    epochs: list[float] = field(default_factory=list)
    """Whole epochs, where they are not made of steps one after the other."""
    phases: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    """The visit, start-up included."""


def cut(
    step_seconds: Sequence[float], epoch_seconds: Sequence[float], samples: int, batch: int, graph: bool = False
) -> Block:
    """Steps from the start of an epoch on, told apart; `epoch_seconds` of the whole ones among them."""
    per_epoch, left = -(-samples // batch), samples % batch
    warm_up = warm_up_of(step_seconds, graph)
    seconds, short, first = [], [], []
    for number, step in enumerate(step_seconds):
        position = number % per_epoch
        if left and position == per_epoch - 1:
            short.append(step)
        elif number >= warm_up:
            seconds.append(step)
            if position == 0:
                first.append(step)
    between = [
        max(0.0, whole - sum(step_seconds[epoch * per_epoch : (epoch + 1) * per_epoch]))
        for epoch, whole in enumerate(epoch_seconds)
    ]
    return Block(seconds, short, first, between)


def warm_up_of(step_seconds: Sequence[float], graph: bool = False) -> int:
    """Steps to drop: three, and more while they are over in no time; a graph is captured first. At most half."""
    least, total = GRAPH_WARM_UP_STEPS if graph else WARM_UP_STEPS, 0.0
    for number, step in enumerate(step_seconds):
        if number >= least and total >= WARM_UP_SECONDS:
            return min(number, len(step_seconds) // 2)
        total += step
    return len(step_seconds) // 2


def counted(blocks: Sequence[Block]) -> Sequence[Block]:
    """All but the first, where there are others: it tells how long a step may take, and prepares the ranks.

    Memory that a rank has never had is cleared by the kernel as it is touched, 46 MiB of gradients in 12,000 page
    faults, and a step's blocks find their places over several steps: the second and third of a fresh pair of ranks
    take 1.3 times as long as those of the next visit.
    """
    return blocks[1:] if len(blocks) > 1 else blocks


def interval_of_blocks(blocks: Sequence[Sequence[float]], usual: Spread | None = None) -> Interval:
    """The median of all steps, with a 95 % interval of Student's t over the blocks' own medians.

    Steps in a row are alike, and a machine is not the same a minute later: however many steps a block has, it is one
    look at the machine. How far such looks lie from each other is known from other cells too, if `usual` is given.
    Blocks that agree by chance do not make the interval narrower than the noise of the steps allows. A lone block
    that nothing is known beside has the interval of its steps.
    """
    blocks = [block for block in blocks if block]
    steps = [step for block in blocks for step in block]
    levels = levels_of(blocks)
    if not (usual := usual or usual_spread([levels])) or len(steps) < 2:
        return interval_of(steps)
    middle, centre = median(steps), fmean(levels)
    reach = max(
        usual.reach(levels) * _widened_by_likeness(levels),
        LEAST_ERRORS * OF_A_MEDIAN * stray_of(blocks) / math.sqrt(len(steps)),
    )
    low, high = max(0.0, centre - reach), centre + reach
    return Interval(middle, min(low, middle), max(high, middle), len(steps))


def levels_of(blocks: Sequence[Sequence[float]]) -> list[float]:
    """The median step of each block that has any."""
    return [median(block) for block in blocks if block]


def stray_of(blocks: Sequence[Sequence[float]]) -> float:
    """The standard deviation of steps around their own block's median, by the median of how far they stray."""
    strays: list[float] = []
    for block in blocks:
        middle = median(block)
        strays += [abs(step - middle) for step in block]
    return FROM_MEDIAN_STRAY * median(strays)


def _widened_by_likeness(levels: Sequence[float]) -> float:
    """Where each block is like the one before it, as on a machine that slows down for a while, they say less than
    their number: by how much an interval of their mean is to be wider. Never narrower, and not on a whim of three."""
    count, centre = len(levels), fmean(levels)
    strays = [level - centre for level in levels]
    total = sum(stray * stray for stray in strays)
    if count < FEWEST_FOR_LIKENESS or not total:
        return 1.0
    alike = sum(one * next_one for one, next_one in pairwise(strays)) / total + 1 / count
    alike = min(max(alike, 0.0), MOST_ALIKE)
    return math.sqrt((1 + alike) / (1 - alike))


def epoch_of(blocks: Sequence[Block], samples: int, batch: int) -> float:
    """Steps per epoch x step time, the last as short as it is, + what an epoch was seen to cost beside: never less."""
    if epochs := [seconds for block in blocks for seconds in block.epochs]:
        return median(epochs)
    step = median(seconds for block in blocks for seconds in block.seconds)
    whole, left = divmod(samples, batch)
    short, first, between = (_all(blocks, name) for name in ("short", "first", "between"))
    seconds = whole * step + (median(short) if short else step if left else 0.0)
    if first and whole > 2:  # of two steps the median lies between the first and the other: it knows of both
        seconds += max(0.0, median(first) - step)
    return seconds + (median(between) if between else 0.0)


def phases_of(blocks: Sequence[Block], step_seconds: float) -> dict[str, float]:
    """Of all blocks, each by its steps; they sum to the step."""
    totals: dict[str, float] = {}
    for block in blocks:
        for phase, seconds in block.phases.items():
            totals[phase] = totals.get(phase, 0.0) + seconds * len(block.seconds)
    return shared_out(totals, step_seconds)


def _all(blocks: Sequence[Block], name: str) -> list[float]:
    return [seconds for block in blocks for seconds in getattr(block, name)]
