"""Picture of one predicted step for the page: when devices and links are busy, and how much of each link is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from scalewise.core.timeline import PHASES, SHOWN_RANKS, SHOWN_ROUNDS, Span, in_ticks
from scalewise.hardware.cluster import Cluster, Link
from scalewise.hardware.transfers import Send
from scalewise.predict.collective_seconds import link_bytes
from scalewise.predict.network import Channel, Layout, Network, Way, packed
from scalewise.predict.predictor import Predictor
from scalewise.predict.simulator import SimulatedStep
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Operation, alike_sends, sends_among

PICTURES = 1_000
"""Largest number of pictures in a page, so that it stays small."""
SHOWN_HOSTS = 4
"""Largest number of hosts in a picture of a cluster; others are mentioned."""
EVERY_SEND = 16
"""Largest number of ranks for which every send of a collective is followed; of more, the edges of a ring."""
WAYS: tuple[Way, ...] = ("out", "in", "both")
COMPUTING = frozenset({"load", "forward", "loss", "backward", "update"})
Owner = Literal["rank", "host"]


def step_picture(
    predictor: Predictor, strategy: Strategy, devices: int, batch: int, layout: Layout | None = None
) -> dict[str, Any]:
    """Return the timeline and the topology of a predicted step as a JSON document.

    `timeline`: see `timeline_document`. `topology`: see `topology`. `use`: for each slot of the topology, the fraction
    of the step in which it is in use, in thousandths.
    """
    layout = layout or packed(predictor.cluster, devices)
    step = predictor.simulate(strategy, devices, batch, layout)
    length = max(step.ends)
    seconds = min(length, SHOWN_ROUNDS * step.step_seconds)
    spans = list(step.timeline.spans)
    shape, slots = topology(predictor.cluster, layout)
    channels, busy = channel_use(step, predictor.cluster, layout), _busy(spans, length, layout.workers)
    return {
        "timeline": timeline_document(spans, seconds, layout.workers),
        "topology": shape,
        "use": [
            round(1000 * min(1.0, busy.get(slot, 0.0) if isinstance(slot, int) else _busiest(channels, slot)))
            for slot in slots
        ],
    }


def step_pictures(predictor: Predictor, steps: Sequence[tuple[Strategy, int, int] | None]) -> dict[int, dict[str, Any]]:
    """Return the pictures of steps (strategy, devices, batch) by their position; None has no picture."""
    return {number: step_picture(predictor, *step) for number, step in enumerate(steps[:PICTURES]) if step}


def timeline_document(spans: Sequence[Span], seconds: float, workers: int) -> dict[str, Any]:
    """Return the timeline of a step of `seconds`.

    `lanes`: name, 'device' or 'link', and number of its spans; equal lanes share their spans, because equal ranks do
    the same. `spans`: flat lists of phase, start and length, in ticks.
    """
    by_lane: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.start < seconds:
            by_lane[span.rank, span.lane].append(span)
    ranks = sorted({rank for rank, _ in by_lane})
    shown = [*range(min(workers, SHOWN_RANKS)), *[rank for rank in ranks if rank >= workers][:SHOWN_RANKS]]
    lanes: list[list[object]] = []
    numbers: dict[tuple[int, ...], int] = {}
    for rank in shown:
        simulated = _representative(rank, ranks)
        name = f"device {rank}" if rank < workers else f"server {rank - workers}"
        for lane, kind in (("compute", "device"), ("network", "link")):
            flat = _flat(by_lane.get((simulated, lane), []), seconds)
            if flat:
                title = f"{name}, transfers" if kind == "link" else name
                lanes.append([title, kind, numbers.setdefault(flat, len(numbers))])
    return {
        "seconds": seconds,
        "lanes": lanes,
        "spans": [list(flat) for flat in numbers],
        "hidden_devices": max(0, workers - SHOWN_RANKS),
    }


def _representative(rank: int, simulated: Sequence[int]) -> int:
    """Rank that was simulated for this one: itself, or the nearest lower rank, which does the same."""
    return max((other for other in simulated if other <= rank), default=rank)


def _flat(spans: Iterable[Span], seconds: float) -> tuple[int, ...]:
    """Return phase, start and length of each span in ticks, one after the other."""
    return tuple(
        number for phase, start, length in in_ticks(spans, seconds) for number in (PHASES.index(phase), start, length)
    )


def _busy(spans: Iterable[Span], seconds: float, workers: int) -> dict[int, float]:
    """Fraction of the time in which each worker computes."""
    simulated: dict[int, float] = defaultdict(float)
    for span in spans:
        if span.lane == "compute":
            simulated[span.rank] += span.seconds / seconds if span.phase in COMPUTING else 0.0
    ranks = sorted(simulated)
    return {rank: simulated[_representative(rank, ranks)] for rank in range(min(workers, SHOWN_RANKS * SHOWN_HOSTS))}


def _busiest(use: dict[Channel, float], channels: Iterable[Channel]) -> float:
    return max((use.get(channel, 0.0) for channel in channels), default=0.0)


def channel_use(step: SimulatedStep, cluster: Cluster, layout: Layout) -> dict[Channel, float]:
    """Fraction of the step in which each channel of the network carries data."""
    network = Network(cluster, layout)
    ranks = layout.workers + SHOWN_RANKS
    busy: dict[Channel, float] = defaultdict(float)
    for operation in step.operations:
        for send in _sends_of(operation):
            if max(send.source, send.target) >= ranks:
                continue
            path = network.path(send.source, send.target, send.reply_bytes > 0, send.bytes, alone=bool(operation.send))
            for channel, seconds_per_byte in path.channels:
                busy[channel] += send.bytes * seconds_per_byte
    length = max(step.ends)
    return {channel: seconds / length for channel, seconds in busy.items()}


def _sends_of(operation: Operation) -> Iterable[Send]:
    """Return the sends of an operation between ranks of the cluster; of many ranks, the edges of a ring."""
    if operation.send:
        return alike_sends(operation.send, min(operation.count, EVERY_SEND))
    collective = operation.collective
    if collective is None:
        return []
    if collective.ranks <= EVERY_SEND:
        return sends_among(collective, operation.rank)
    carried = round(link_bytes(collective.operation, collective.ranks, collective.bytes))
    ring = [operation.rank + collective.stride * rank for rank in range(collective.ranks)]
    return [Send(source, target, carried) for source, target in zip(ring, [*ring[1:], ring[0]], strict=True)]


Slot: TypeAlias = "int | tuple[Channel, ...]"
"""Part of a picture that has a utilisation: a rank, or channels of which the busiest counts."""


def topology(cluster: Cluster, layout: Layout) -> tuple[dict[str, Any], list[Slot]]:
    """Return the hosts, devices and links of a layout, and its slots.

    The document refers to a slot by its number, so that layouts of many cells that differ only in utilisation are
    stored once.
    """
    slots: list[Slot] = []

    def add(slot: Slot) -> int:
        slots.append(slot)
        return len(slots) - 1

    link = cluster.link("hosts") if layout.hosts > 1 else None
    shown = range(min(layout.hosts, SHOWN_HOSTS))
    pairs = [(one, other) for one in shown for other in shown if one < other] if link and link.pairs else []
    shape = {
        "cluster": cluster.name,
        "hosts": [_host(cluster, layout, number, add) for number in shown],
        "hidden_hosts": layout.hosts - len(shown),
        "network": _link_document(link) if link else None,
        "pairs": [{"hosts": pair, "slot": add((Channel("pair", pair, "both", link.kind),))} for pair in pairs if link],
    }
    return shape, slots


def _host(cluster: Cluster, layout: Layout, number: int, add: Callable[[Slot], int]) -> dict[str, Any]:
    first, count = layout.first_of(number), layout.per_host[number]
    ranks = range(first, first + count)
    kinds = [cluster.device_at(place) for place in range(count)]
    links = [link for link in cluster.links if link.between != "hosts" and (link.between == "host-device" or count > 1)]
    return {
        "devices": [
            {"rank": rank, "name": kind.name, "memory_GB": kind.memory_GB, "slot": add(rank)}
            for rank, kind in zip(ranks, kinds, strict=True)
        ],
        "links": [_link_within(link, number, ranks, add) for link in links],
        "uplink": _uplink(cluster, layout, number, ranks, add),
    }


def _uplink(cluster: Cluster, layout: Layout, number: int, ranks: range, add: Callable[[Slot], int]) -> int | None:
    """Slot of the link between a host and the network; None if there is one host or if pairs of hosts have links."""
    link = cluster.link("hosts")
    if link is None or layout.hosts == 1 or link.pairs:
        return None
    owners: list[tuple[Owner, int]] = [("host", number)] if link.shared else [("rank", rank) for rank in ranks]
    return add(tuple(Channel(owner, one, way, link.kind) for owner, one in owners for way in WAYS))


def _link_within(link: Link, host: int, ranks: range, add: Callable[[Slot], int]) -> dict[str, Any]:
    """Describe a link within a host: its groups of devices, and a slot for the end of each device."""
    size = link.group or len(ranks)
    if link.shared:
        ends = [add((Channel("host", host, "both", link.kind),))] * len(ranks)
    else:
        ends = [add(tuple(Channel("rank", rank, way, link.kind) for way in WAYS)) for rank in ranks]
    groups = [list(ranks[at : at + size]) for at in range(0, len(ranks), size)]
    return {**_link_document(link), "groups": groups, "ends": ends}


def _link_document(link: Link) -> dict[str, Any]:
    return {
        "between": link.between,
        "kind": link.kind,
        "GBps": link.all_ports_GBps,
        "latency_us": link.latency_us,
        "shared": link.shared,
        "source": link.source,
    }
