"""Groups of devices that share a model each, all alike: how they add up, inside and across, and which are planned."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.collectives.collective import Collective
from scalewise.plan import PlanBuilder
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class AlikeGroups:
    """Devices in a row are a group. Of thousands the first are planned, and the last of these for the rest."""

    devices: int
    inside: int
    """Devices of a group."""
    planned: int
    backend: Backend

    @property
    def count(self) -> int:
        return self.devices // self.inside

    @property
    def firsts(self) -> range:
        """The first device of every group that is planned."""
        return range(0, self.planned * self.inside, self.inside)

    @property
    def all_planned(self) -> bool:
        return self.planned == self.count

    def alike(self, first: int) -> int:
        """Devices that do what those of this group do."""
        return self.devices - first if first == self.firsts[-1] else self.inside

    def sum_inside(self, builder: PlanBuilder, first: int, bytes: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """Between the devices of one group, while the other groups do the same."""
        made = Collective("all_reduce", self.backend, self.inside, bytes, groups=self.count)
        return builder.collective("reduce", made, after, first)

    def sum_across(self, builder: PlanBuilder, part: int, bytes: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """Between those of all groups that hold the same part."""
        made = Collective("all_reduce", self.backend, self.count, bytes, stride=self.inside)
        return builder.collective("reduce", made, after, part)
