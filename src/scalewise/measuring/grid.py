"""Which cells a sweep has, and in which order: first the corners of the grid, then ever finer what lies between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.errors import UserError
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy, batch_shares


@dataclass(frozen=True)
class Axes:
    """What is varied; `batch` is global unless `per_device`."""

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
                raise UserError(f"{flag} is '{listed}'; it must be whole numbers from {least}, as in {flag} 1,2,4")
        if not self.workloads or not self.strategies:
            raise UserError("there is nothing to measure; name a workload and a strategy: linear --strategy ring")
        if max(self.hosts) > 1 and not self.links:
            raise UserError(f"{max(self.hosts)} rehearsed hosts need the speed of their links; add --link 1gbit")
        if self.links and max(self.hosts) == 1 and not any(hasattr(each, "servers") for each in self.strategies):
            raise UserError(f"link '{self.links[0]}' joins rehearsed hosts; ask for them with --hosts 2")


@dataclass(frozen=True)
class Point:
    """A cell's place in the grid."""

    workload: str
    strategy: Strategy
    devices: int
    batch: int
    hosts: int = 1
    link: str | None = None


def grid(axes: Axes) -> list[Point]:
    """Every cell once. `single` has one device, on no rehearsed host, however many the others are given."""
    devices, batches = sorted(set(axes.devices)), sorted(set(axes.batch))
    device_levels = dict(zip(devices, levels(len(devices)), strict=True))
    found: dict[Point, tuple[int, int]] = {}
    for workload in axes.workloads:
        for batch, batch_level in zip(batches, levels(len(batches)), strict=True):
            for count in devices:
                for strategy in axes.strategies:
                    for hosts, link in _places(axes, strategy, count):
                        alone = isinstance(strategy, Single)
                        ranks = 1 if alone else count
                        whole = batch * batch_shares(strategy, ranks) if axes.per_device else batch
                        point = Point(workload, strategy, ranks, whole, hosts, link)
                        level = 0 if alone else device_levels[count]
                        found.setdefault(point, (max(level, batch_level), level + batch_level))
    if not found:
        raise UserError(
            f"{max(devices)} devices leave some of {min(axes.hosts)} hosts without one; give at least as many --devices"
        )
    # Sorting is stable: within a level the axes go on in their own order, devices beside each other at one batch.
    return sorted(found, key=lambda point: found[point])


def levels(count: int) -> list[int]:
    """How early each of so many values along an axis is wanted: 5 -> [0, 2, 1, 2, 0]."""
    found = [0] * count

    def halve(first: int, last: int, level: int) -> None:
        if last - first < 2:
            return
        middle = (first + last) // 2
        found[middle] = level
        halve(first, middle, level + 1)
        halve(middle, last, level + 1)

    halve(0, count - 1, 1)
    return found


def _places(axes: Axes, strategy: Strategy, devices: int) -> list[tuple[int, str | None]]:
    """Every host has a device. Links join hosts; servers have hosts of their own, so that theirs exist on one too."""
    if isinstance(strategy, Single):
        return [(1, None)]
    served = hasattr(strategy, "servers")
    linked: list[str | None] = [*axes.links] or [None]
    return [
        (hosts, link)
        for hosts in axes.hosts
        if hosts <= devices
        for link in (linked if hosts > 1 or served else [None])
    ]
