"""What a training run brings back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.results.memory import MemoryPerDevice
from scalewise.results.phase_table import phase_table
from scalewise.results.printable import Printable
from scalewise.results.statistics import Interval
from scalewise.results.units import bytes_text, seconds_text
from scalewise.timeline import Timeline

LOADED = {"device": "data on the device", "stream": "data streamed", "files": "data from files each epoch"}


@dataclass(frozen=True)
class BytesPerStep:
    """Sent over all ranks, as planned and as traced; `busiest`: one rank's sent plus received.

    Of an asynchronous run a step is one update by one worker.
    """

    planned: int
    traced: int | None
    busiest: int
    traced_by: Literal["kernel", "counted copies"] = "kernel"
    """What crosses sockets is counted by the kernel; copies between host memory and devices only where they are made,
    and then the host's memory is the busiest."""


@dataclass(frozen=True)
class Staleness:
    """Versions between a worker's pull and its update, of an asynchronous run: all three over all servers, each of
    which has versions of its own and counts its part of every update."""

    mean: float
    max: int
    histogram: dict[int, int]
    """Versions -> how often; it sums to the updates times the servers, but for pushes cut short by a death."""


@dataclass(frozen=True)
class Updates:
    """Pushes that are in the weights, and those that were answered with them, as server 0 counts them."""

    applied: int
    acknowledged: int
    by_worker: dict[int, int]
    seen_by_workers: int
    """Answers that reached a worker which lived to tell."""
    batches: int
    """That they were made for: each takes an update by every worker."""
    versions: int
    """Of the weights, that they made: where staleness is bounded, several pushes may make one."""


@dataclass(frozen=True)
class TrainResult(Printable):
    """The JSON document of `scalewise train`, with what is shown beside it."""

    workload: str
    data: str
    strategy: str
    options: dict[str, Any]
    devices: int
    device_kind: str
    hosts: int
    link: str | None
    batch: int
    batch_per_device: int
    precision: str
    steps: int
    """Of an asynchronous run, updates."""
    epochs: int
    epoch_seconds: list[float]
    step_seconds: Interval
    loss: float
    accuracy: float | None
    phases: dict[str, float]
    """Of the median step: they sum to it."""
    phases_rank: int
    """By whose shares: the rank that sets the pace."""
    bytes_per_step: BytesPerStep
    parameters: int
    execution: str
    load: str
    peak_memory_bytes: int | None
    memory: MemoryPerDevice | None = None
    samples_per_second: float | None = None
    """Over the wall time of all steps after the warm-up; of asynchronous workers, whose steps overlap, from when each
    is past its first two until the first is through."""
    staleness: Staleness | None = None
    """Of an asynchronous run, as is the next."""
    updates: Updates | None = None
    spread: str = ""
    """The strategy as the table names it: with the options given, and what it chose itself."""
    notes: list[str] = field(default_factory=list)
    """What the reader must know to read the figures: oversubscribed devices, synthetic data, an interrupted run."""
    checkpoint: Path | None = None
    timeline: Timeline | None = None
    curve: list[tuple[float, float, int]] = field(default_factory=list)
    """(seconds since the start, training loss and samples of the step that then ended)."""

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        del document["timeline"], document["curve"], document["spread"]
        if self.staleness is None:
            del document["staleness"], document["updates"]
        document["checkpoint"] = str(self.checkpoint) if self.checkpoint else None
        document["loss"] = None if math.isnan(self.loss) else self.loss
        if not self.step_seconds.n:
            document["step_seconds"] = {"median": None, "low": None, "high": None, "n": 0}
        return document

    def __rich__(self) -> RenderableType:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim")
        facts.add_column(overflow="fold")
        for name, text in self._facts():
            facts.add_row(name, Text(text))
        parts: list[RenderableType] = [facts]
        if self.phases:
            parts += [Text(), phase_table(self.phases, "phase" if self.devices == 1 else f"rank {self.phases_rank}")]
        parts += [Text(f"note: {note}", style="yellow") for note in self.notes]
        return Group(*parts)

    def _facts(self) -> list[tuple[str, str]]:
        times = self.step_seconds
        rate = f"{self.samples_per_second:,.0f} samples/s" if self.samples_per_second else "-"
        devices = _counted(self.devices, f"{self.device_kind} device")
        if self.hosts > 1:
            devices += f" on {self.hosts} hosts" + (f" joined by {self.link}" if self.link else "")
        spread = f"{self.spread or self.strategy} on {devices}"
        facts = [
            ("workload", f"{self.workload}  ({self.parameters:,} parameters; {self.data})"),
            ("strategy", f"{spread}, {self.execution}, {self.precision}, {LOADED[self.load]}"),
            ("batch", f"{self.batch} global = {self.batch_per_device} per device"),
            ("trained", f"{self._trained()}, {_counted(self.epochs, 'full epoch')}; {self._warm_up()}"),
            (
                "step",
                f"one update by one worker: {times.text}  {rate} of all workers"
                if self.updates
                else f"{times.text}  {rate}",
            ),
        ]
        if self.staleness and self.updates:
            facts += self._asynchronous_facts(self.staleness, self.updates)
        if self.epoch_seconds:
            middle = sorted(self.epoch_seconds)[len(self.epoch_seconds) // 2]
            facts.append(("epoch", f"{seconds_text(middle)}  (median of {len(self.epoch_seconds)}, warm-up included)"))
        facts.append(
            ("loss", f"{self.loss:.4f}" + (f", accuracy {self.accuracy:.2%}" if self.accuracy is not None else ""))
        )
        if self.bytes_per_step.planned:
            facts.append(self._traffic(self.bytes_per_step))
        if self.memory and (self.memory.planned or self.memory.measured):
            facts.append(("memory", self.memory.text))
        if self.checkpoint:
            facts.append(("checkpoint", str(self.checkpoint)))
        return facts

    def _trained(self) -> str:
        if self.updates:
            return f"{_counted(self.steps, 'update')} for {_counted(self.updates.batches, 'batch', 'batches')}"
        return _counted(self.steps, "step")

    def _warm_up(self) -> str:
        untimed = self.steps - self.step_seconds.n
        if untimed == 0:
            return "all timed, no warm-up"
        if self.updates:
            return f"each worker's first ones, {untimed:,} in all, are warm-up and not timed"
        if untimed == 1:
            return "the first step is warm-up and not timed"
        return f"the first {untimed:,} steps are warm-up and not timed"

    def _traffic(self, sent: BytesPerStep) -> tuple[str, str]:
        planned = bytes_text(sent.planned)
        if sent.traced_by == "counted copies" and sent.traced is not None:
            return (
                "copied",
                f"{planned} per step between host memory and all devices, as planned; {bytes_text(sent.traced)} as "
                "counted copies",
            )
        counted = "not traced" if sent.traced is None else f"{bytes_text(sent.traced)} traced"
        who = "server or device" if "servers" in self.options else "device"
        each = "update" if self.updates else "step in all"
        return (
            "sent",
            f"{planned} per {each}, as planned; {counted}; busiest {who} {bytes_text(sent.busiest)} out and in",
        )

    def _asynchronous_facts(self, staleness: Staleness, updates: Updates) -> list[tuple[str, str]]:
        together = f" in {updates.versions:,} versions" if updates.versions < updates.applied else ""
        applied = f"{updates.applied:,} applied{together}"
        shares = ", ".join(f"worker {worker} {count:,}" for worker, count in updates.by_worker.items())
        seen = ", ".join(f"{versions}: {times:,}" for versions, times in list(staleness.histogram.items())[:8])
        servers = self.options.get("servers", 1)
        counted = f"; each of {servers} servers counts its part of an update" if servers > 1 else ""
        return [
            ("updates", f"{applied}, {updates.acknowledged:,} acknowledged ({shares})"),
            ("staleness", f"{staleness.mean:.2f} versions on average, {staleness.max} at most ({seen}){counted}"),
        ]


def _counted(number: int, noun: str, several: str = "") -> str:
    """'1 step', '20 steps'."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
