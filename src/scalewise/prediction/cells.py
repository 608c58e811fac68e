"""Measured cells as predictions see them: one device's as a profile, the others beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalewise.clusters.cluster import Cluster, Link
from scalewise.errors import UserError
from scalewise.results.measurement import Measurement
from scalewise.results.profile import ProfileDocument, StepCost
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import Strategy

COMPUTING = ("load", "forward", "loss", "backward", "update")
BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
PAYLOAD = 0.949
"""Of 1500-byte frames."""
REHEARSED_LATENCY_us = 100.0
Outline = Callable[[Measurement], ProfileDocument]
"""What a cell's workload weighs, as a profile without steps."""


@dataclass(frozen=True)
class TimedCell:
    """A cell on several devices, and the profile that its one-device neighbours make."""

    cell: Measurement
    profile: ProfileDocument
    seconds: float
    """Of a step, as measured."""

    @property
    def strategy(self) -> Strategy:
        options = ",".join(f"{name}={value}" for name, value in self.cell.options.items() if value not in (None, ""))
        return strategy_of(f"{self.cell.strategy}:{options}" if options else self.cell.strategy)

    @property
    def is_across(self) -> bool:
        """Real hosts, not rehearsed ones."""
        return self.cell.hosts > 1 and self.cell.link is None

    def place_on(self, cluster: Cluster) -> Cluster:
        """As many hosts as the cell had, its devices shared out evenly, joined as they were."""
        if self.cell.hosts == 1:
            return replace(cluster, hosts=1)
        per_host = -(-self.cell.devices // self.cell.hosts)
        links = cluster.links
        if self.cell.link is not None:
            links = tuple(link for link in links if link.between != "hosts" or link.kind == self.cell.link)
            links += () if any(link.between == "hosts" for link in links) else (rehearsed(self.cell.link),)
        return replace(
            cluster,
            hosts=self.cell.hosts,
            devices_per_host=per_host,
            devices=(replace(cluster.devices[0], count=per_host),),
            links=links,
            servers_apart=True,
        )


def rehearsed(link: str) -> Link:
    """'200mbit' as a link between hosts."""
    match = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", link)
    if match is None:
        raise UserError(f"cannot read link '{link}'; valid are for example 200mbit, 1gbit")
    GBps = float(match[1]) * BITS_PER_SECOND[match[2]] / 8e9
    return Link("hosts", link, PAYLOAD * GBps, REHEARSED_LATENCY_us, shared=True, source="its line rate")


def timed_cells(measurements: Sequence[Measurement], outline: Outline, samples: dict[str, int]) -> list[TimedCell]:
    """Those on several devices that ran well, where one device was timed, too; `samples` of an epoch by environment."""
    fine = [each for each in measurements if each.status == "ok" and each.step_seconds is not None]
    profiles: dict[tuple[object, ...], ProfileDocument | None] = {}
    found: list[TimedCell] = []
    for each in fine:
        if each.devices == 1 or each.step_seconds is None:
            continue
        if (key := _alike(each)) not in profiles:
            alone = [other for other in fine if _alike(other) == key and other.devices == 1]
            epoch = samples.get(each.environment) or max(other.batch for other in fine)
            profiles[key] = profile_from(outline(each), alone, epoch) if alone else None
        if profile := profiles[key]:
            found.append(TimedCell(each, profile, each.step_seconds.median))
    return found


def profile_from(outline: ProfileDocument, alone: Sequence[Measurement], samples: int) -> ProfileDocument:
    """By `single` where it was timed, and eagerly where it was: steps of several devices are eager."""
    best = min(_rank(each) for each in alone)
    steps = {each.batch: _cost(each) for each in alone if _rank(each) == best}
    return outline.model_copy(
        update={
            "samples_per_epoch": samples,
            "steps": tuple(steps[batch] for batch in sorted(steps)),
            "execution": "graph" if best[1] else "eager",
        }
    )


def _rank(each: Measurement) -> tuple[bool, bool, str]:
    return each.strategy != "single", each.execution != "eager", each.strategy


def _cost(each: Measurement) -> StepCost:
    """The median step, shared out as the phases were; what is none of a device's own work counts as forward."""
    assert each.step_seconds is not None
    total = sum(each.phases.values())
    step = each.step_seconds.median
    seconds = {phase: each.phases.get(phase, 0.0) / total * step for phase in COMPUTING} if total else {}
    own = sum(seconds.values())
    return StepCost(
        batch=each.batch,
        load=seconds.get("load", 0.0),
        forward=seconds.get("forward", 0.0) + seconds.get("loss", 0.0) + max(0.0, step - own),
        backward=seconds.get("backward", 0.0),
        update=seconds.get("update", 0.0),
        step_seconds=step,
        peak_memory_bytes=each.peak_memory_bytes,
    )


def _alike(each: Measurement) -> tuple[object, ...]:
    return each.workload, each.device_kind, each.precision, each.optimizer, each.environment
