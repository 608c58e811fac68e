"""Cells of a sweep, the order of their visits, and what their visits measured."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval, interval_of
from scalewise.core.timeline import shared_out
from scalewise.formats.store import Measurement, Protocol, identity_of
from scalewise.strategies.base import Strategy, batch_shares, options_of
from scalewise.strategies.registry import written
from scalewise.sweep.drift import Spread, usual_spread


@dataclass(frozen=True)
class Cell:
    """Identity of a measurement: one combination of workload, strategy, devices, batch and settings."""

    workload: str
    strategy: Strategy
    devices: int
    device_kind: str
    hosts: int
    link: str | None
    batch: int
    precision: str
    optimizer: str
    protocol: Protocol
    execution: str
    """Expected execution ('eager' or 'graph'); the measured one may differ."""

    @property
    def batch_per_device(self) -> int:
        return -(-self.batch // batch_shares(self.strategy, self.devices))

    @property
    def identity(self) -> Hashable:
        return identity_of(self.fields())

    @property
    def text(self) -> str:
        """The cell in words: 'linear, mirrored on 2 cpu devices, batch 20'."""
        place = f"{self.devices} {self.device_kind} device{'s' if self.devices > 1 else ''}"
        if self.link:
            place += f" on {self.hosts} host{'s' if self.hosts > 1 else ''} at {self.link}"
        strategy = written(self.strategy.name, options_of(self.strategy))
        return f"{self.workload}, {strategy} on {place}, batch {self.batch}"

    def fields(self) -> dict[str, Any]:
        """Return the identifying fields of the cell's measurement."""
        return {
            "workload": self.workload,
            "strategy": self.strategy.name,
            "options": options_of(self.strategy),
            "devices": self.devices,
            "device_kind": self.device_kind,
            "hosts": self.hosts,
            "link": self.link,
            "batch": self.batch,
            "batch_per_device": self.batch_per_device,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "protocol": self.protocol,
            "execution": self.execution,
        }

    def measured(self, **results: Any) -> Measurement:
        """Create a measurement of this cell; `results` are the remaining fields."""
        return Measurement(**{**self.fields(), **results})


@dataclass(frozen=True)
class Axes:
    """Values of each option of a sweep; `batch` is global unless `per_device` is true."""

    workloads: Sequence[str]
    strategies: Sequence[Strategy]
    devices: Sequence[int]
    batch: Sequence[int]
    per_device: bool = False
    hosts: Sequence[int] = (1,)
    links: Sequence[str] = ()

    def __post_init__(self) -> None:
        for flag, values, least in (
            ("--devices", self.devices, 1),
            ("--batch-per-device" if self.per_device else "--batch", self.batch, 1),
            ("--hosts", self.hosts, 1),
        ):
            if not values or any(value < least for value in values):
                listed = ",".join(map(str, values))
                raise UserError(
                    f"{flag} is '{listed}'; give whole numbers of at least {least}, separated by commas: {flag} 1,2,4"
                )
        if not self.workloads or not self.strategies:
            raise UserError("nothing to measure; name a workload and a strategy: linear --strategy ring")
        if 1 not in self.devices and all(strategy.reference for strategy in self.strategies):
            raise UserError(
                f"{self.strategies[0].name} runs on one device, but --devices is {self.devices[0]}; use --devices 1 "
                "or another --strategy"
            )
        if max(self.hosts) > 1 and not self.links:
            raise UserError(f"--hosts {max(self.hosts)} emulates hosts, which need a link speed; add --link 1gbit")
        if self.links and max(self.hosts) == 1 and not any(strategy.servers for strategy in self.strategies):
            raise UserError(f"--link {self.links[0]} connects emulated hosts; add --hosts 2, or leave --link out")


@dataclass(frozen=True)
class Point:
    """Coordinates of a cell in the grid."""

    workload: str
    strategy: Strategy
    devices: int
    batch: int
    hosts: int = 1
    link: str | None = None


def grid(axes: Axes) -> list[Point]:
    """Return every cell once, in measuring order: the corners of the grid first, then ever finer subdivisions.

    `single` always runs on one device without emulated hosts.
    """
    devices, batches = sorted(set(axes.devices)), sorted(set(axes.batch))
    device_levels = dict(zip(devices, levels(len(devices)), strict=True))
    levels_of_point: dict[Point, tuple[int, int]] = {}
    for workload in axes.workloads:
        for batch, batch_level in zip(batches, levels(len(batches)), strict=True):
            for count in devices:
                for strategy in axes.strategies:
                    for hosts, link in _hosts_and_links(axes, strategy, count):
                        ranks = 1 if strategy.reference else count
                        global_batch = batch * batch_shares(strategy, ranks) if axes.per_device else batch
                        point = Point(workload, strategy, ranks, global_batch, hosts, link)
                        level = 0 if strategy.reference else device_levels[count]
                        levels_of_point.setdefault(point, (max(level, batch_level), level + batch_level))
    if not levels_of_point:
        raise UserError(
            f"--devices {max(devices)} is less than --hosts {min(axes.hosts)}, but every host needs a device; use at "
            f"least --devices {min(axes.hosts)}"
        )
    # Sorting is stable: within a level the device counts at one batch stay next to each other.
    return sorted(levels_of_point, key=lambda point: levels_of_point[point])


def levels(count: int) -> list[int]:
    """Return the level of each value along an axis, 0 for the ends, then by halving: 5 -> [0, 2, 1, 2, 0]."""
    depths = [0] * count

    def halve(first: int, last: int, level: int) -> None:
        if last - first < 2:
            return
        middle = (first + last) // 2
        depths[middle] = level
        halve(first, middle, level + 1)
        halve(middle, last, level + 1)

    halve(0, count - 1, 1)
    return depths


def _hosts_and_links(axes: Axes, strategy: Strategy, devices: int) -> list[tuple[int, str | None]]:
    """Return the combinations of hosts and link for a strategy; every host has at least one device.

    Servers run on hosts of their own, so server strategies have links even with one worker host.
    """
    if strategy.reference:
        return [(1, None)]
    links: list[str | None] = [*axes.links] or [None]
    return [
        (hosts, link)
        for hosts in axes.hosts
        if hosts <= devices
        for link in (links if hosts > 1 or strategy.servers else [None])
    ]


WARM_UP_STEPS, GRAPH_WARM_UP_STEPS = 3, 6
"""Fewest warm-up steps. The first step allocates optimizer state, the second rebuilds DDP's buckets: the first three
steps of conv on two ranks take 1.09, 1.06 and 1.06 times as long as later ones (medians of 25 visits)."""
WARM_UP_SECONDS = 0.05
"""Shortest duration of the warm-up."""
FEWEST_FOR_CORRELATION = 4
"""Number of blocks from which on their correlation is estimated."""
MOST_CORRELATION = 0.8
"""Largest correlation between successive blocks that is taken into account."""

LEAST_ERRORS = 1.3
"""Smallest half-width of an interval, in standard errors from the noise of the steps alone."""
FROM_MEDIAN_STRAY = 1.483
"""Ratio of the standard deviation to the median absolute deviation of a normal variable."""
OF_A_MEDIAN = 1.253
"""Ratio of the standard error of a median to that of a mean of normal variables."""


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one cell, timed in one visit."""

    seconds: list[float]
    """Seconds of the steps with a whole batch, after the warm-up."""
    short: list[float] = field(default_factory=list)
    """Seconds of the last steps of epochs with a short batch."""
    first: list[float] = field(default_factory=list)
    """Seconds of the first steps of epochs, after the warm-up."""
    between: list[float] = field(default_factory=list)
    """Seconds of each whole epoch outside its steps."""
    epochs: list[float] = field(default_factory=list)
    """Seconds of whole epochs, if an epoch is not a sequence of steps (asynchronous training)."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per step of each phase."""
    wall_seconds: float = 0.0
    """Duration of the visit, including start-up."""


def block_of(
    step_seconds: Sequence[float], epoch_seconds: Sequence[float], samples: int, batch: int, graph: bool = False
) -> Block:
    """Sort consecutive steps, starting with an epoch, into the fields of a block.

    `epoch_seconds` are the durations of the whole epochs among them.
    """
    per_epoch, remainder = -(-samples // batch), samples % batch
    warm_up = warm_up_of(step_seconds, graph)
    seconds, short, first = [], [], []
    for number, step in enumerate(step_seconds):
        position = number % per_epoch
        if remainder and position == per_epoch - 1:
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
    """Return the number of warm-up steps to drop: at least three (six with a CUDA graph) and 50 ms, at most half."""
    least, total = GRAPH_WARM_UP_STEPS if graph else WARM_UP_STEPS, 0.0
    for number, step in enumerate(step_seconds):
        if number >= least and total >= WARM_UP_SECONDS:
            return min(number, len(step_seconds) // 2)
        total += step
    return len(step_seconds) // 2


def counted(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks that count: all but the first, or the first if it is the only one.

    The first visit warms up the ranks. New memory costs page faults (12,000 for 46 MiB of gradients), and the
    allocator settles over several steps: steps of new ranks take up to 1.3 times as long as those of the next visit.
    """
    return blocks[1:] if len(blocks) > 1 else blocks


def interval_of_blocks(blocks: Sequence[Sequence[float]], usual: Spread | None = None) -> Interval:
    """Return the median of all steps with a 95% interval (Student's t over the medians of the blocks).

    Consecutive steps are correlated and the machine's speed varies over minutes, so a block counts as one observation
    however many steps it has. `usual` is the spread between visits estimated from other cells. The interval is never
    narrower than the noise of the steps allows. A single block without `usual` gets the interval of its steps.
    """
    blocks = [block for block in blocks if block]
    steps = [step for block in blocks for step in block]
    levels = levels_of(blocks)
    if not (usual := usual or usual_spread([levels])) or len(steps) < 2:
        return interval_of(steps)
    middle, centre = median(steps), fmean(levels)
    reach = max(
        usual.reach(levels) * _correlation_factor(levels),
        LEAST_ERRORS * OF_A_MEDIAN * stray_of(blocks) / math.sqrt(len(steps)),
    )
    low, high = max(0.0, centre - reach), centre + reach
    return Interval(middle, min(low, middle), max(high, middle), len(steps))


def levels_of(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Return the median step time of each block that has steps."""
    return [median(block) for block in blocks if block]


def stray_of(blocks: Sequence[Sequence[float]]) -> float:
    """Estimate the standard deviation of steps around the median of their block, from the median deviation."""
    deviations: list[float] = []
    for block in blocks:
        middle = median(block)
        deviations += [abs(step - middle) for step in block]
    return FROM_MEDIAN_STRAY * median(deviations)


def _correlation_factor(levels: Sequence[float]) -> float:
    """Return the factor (at least 1) that widens the interval of the mean if successive blocks are correlated.

    Correlated blocks, as on a machine that slows down for a while, carry less information than independent ones. With
    fewer than four blocks the factor is 1.
    """
    count, centre = len(levels), fmean(levels)
    deviations = [level - centre for level in levels]
    total = sum(deviation * deviation for deviation in deviations)
    if count < FEWEST_FOR_CORRELATION or not total:
        return 1.0
    correlation = sum(one * next_one for one, next_one in pairwise(deviations)) / total + 1 / count
    correlation = min(max(correlation, 0.0), MOST_CORRELATION)
    return math.sqrt((1 + correlation) / (1 - correlation))


def epoch_of(blocks: Sequence[Block], samples: int, batch: int) -> float:
    """Estimate the epoch time: whole and short steps, slower first steps and the time between epochs."""
    if epochs := [seconds for block in blocks for seconds in block.epochs]:
        return median(epochs)
    step = median(seconds for block in blocks for seconds in block.seconds)
    whole, remainder = divmod(samples, batch)
    short, first, between = (_all(blocks, name) for name in ("short", "first", "between"))
    seconds = whole * step + (median(short) if short else step if remainder else 0.0)
    if first and whole > 2:  # with two steps per epoch, the median already includes the first one
        seconds += max(0.0, median(first) - step)
    return seconds + (median(between) if between else 0.0)


def phases_of(blocks: Sequence[Block], step_seconds: float) -> dict[str, float]:
    """Average the phases over the blocks, weighted by their steps and scaled to sum to the step time."""
    totals: dict[str, float] = {}
    for block in blocks:
        for phase, seconds in block.phases.items():
            totals[phase] = totals.get(phase, 0.0) + seconds * len(block.seconds)
    return shared_out(totals, step_seconds)


def _all(blocks: Sequence[Block], name: str) -> list[float]:
    return [seconds for block in blocks for seconds in getattr(block, name)]
