"""Result of a training run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.core.statistics import Interval
from scalewise.core.timeline import Timeline
from scalewise.core.units import Printable, bytes_text, seconds_text


@dataclass(frozen=True)
class MemoryPerDevice:
    """Planned and measured peak memory of a step, on the rank that needs the most."""

    planned: int | None
    """Planned bytes; None if the model cannot be traced on the meta device."""
    measured: int | None
    """Measured bytes; None if `why_not_measured` gives a reason."""
    parts: dict[str, int]
    """Planned bytes at the peak by purpose, such as 'weights' or 'activations'."""
    planned_by_rank: list[int]
    measured_by_rank: list[int | None]
    measured_by: Literal["cuda allocator", "host allocator"]
    """GPU: `torch.cuda.max_memory_allocated` of the whole run, with samples that live there. CPU: growth of resident
    memory in the second step, without the samples."""
    why_not_measured: str = ""

    @property
    def text(self) -> str:
        peaks = {"planned": self.planned, "measured": self.measured}
        peaks_text = ", ".join(f"{bytes_text(size)} {kind}" for kind, size in peaks.items() if size)
        largest_first = sorted(((size, name) for name, size in self.parts.items() if size), reverse=True)
        parts_text = ", ".join(f"{name} {bytes_text(size)}" for size, name in largest_first)
        text = f"peak per device: {peaks_text}" + (f" ({parts_text})" if parts_text else "")
        if not self.planned:
            return f"{text}; not planned"
        return text if self.measured else f"{text}; not measured: {self.why_not_measured}"


_BAR_CHARACTERS = 40
"""Length of the bar of a phase that takes the whole step."""


def phase_table(phases: dict[str, float], title: str = "phase") -> Table:
    """Return a table with one row per phase, in the order of a step."""
    total = sum(phases.values())
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column(title)
    table.add_column("per step", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for phase, seconds in phases.items():
        table.add_row(
            phase,
            seconds_text(seconds),
            f"{seconds / total:.0%}" if total else "-",
            Text("█" * round(_BAR_CHARACTERS * seconds / total) if total else "", style="cyan"),
        )
    return table


LEAST_COMPILE_SECONDS = 0.5
"""Compile time from which the table shows it; capturing a CUDA graph alone takes less."""

_LOAD_TEXT = {
    "device": "data in device memory",
    "stream": "data streamed from host memory",
    "files": "data read from files in every epoch",
}


@dataclass(frozen=True)
class BytesPerStep:
    """Bytes sent per step. In an asynchronous run a step is one update by one worker."""

    planned: int
    """Planned bytes, summed over all ranks."""
    traced: int | None
    """Traced bytes, summed over all ranks; None if they were not traced."""
    busiest: int
    """Bytes sent plus received by the rank with the most traffic; for counted copies, by the host's memory."""
    traced_by: Literal["kernel", "counted copies"] = "kernel"
    """The kernel counts bytes that cross sockets. Copies between host memory and devices are counted by the code that
    makes them."""


@dataclass(frozen=True)
class Staleness:
    """Number of updates between a worker's pull and its own update, in an asynchronous run.

    All values are over all servers: each server has its own versions and counts its part of every update.
    """

    mean: float
    max: int
    histogram: dict[int, int]
    """Staleness -> number of pushes. The sum is updates times servers, less the pushes of workers that died."""


@dataclass(frozen=True)
class Updates:
    """Number of updates of an asynchronous run, counted by server 0."""

    applied: int
    """Pushes that were applied to the weights."""
    acknowledged: int
    """Pushes that the server answered."""
    by_worker: dict[int, int]
    """Applied pushes by worker."""
    seen_by_workers: int
    """Answers that were received by workers that did not die later."""
    batches: int
    """Number of batches; each takes one update by every worker."""
    versions: int
    """Versions of the weights. With bounded staleness several pushes can make one version."""


@dataclass(frozen=True)
class Restart:
    """Restart of a run after it lost a rank."""

    cause: str
    from_step: int
    """Step of the checkpoint from which the run continued; 0: from the start."""
    repeated_steps: int
    """Steps that were computed again, as far as they had been reported."""
    seconds_lost: float
    """Seconds from the report of the failure to the first step after the restart."""
    devices: int


@dataclass(frozen=True)
class Checkpoints:
    """Cost of saving checkpoints, measured in the run."""

    count: int
    seconds: float
    percent: float
    """Share of the time from the first step to the last."""


@dataclass(frozen=True)
class TrainResult(Printable):
    """JSON document of `scalewise train`, with additional values for its tables and figures."""

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
    """Number of steps; in an asynchronous run, number of updates."""
    epochs: int
    epoch_seconds: list[float]
    step_seconds: Interval
    loss: float
    accuracy: float | None
    phases: dict[str, float]
    """Seconds per phase of the median step; they sum to the step time."""
    phases_rank: int
    """Rank that the phases are measured on: the slowest."""
    bytes_per_step: BytesPerStep
    parameters: int
    execution: str
    load: str
    peak_memory_bytes: int | None
    compile_mode: str | None = None
    """Mode of torch.compile; None for other executions."""
    memory_format: str = "contiguous"
    convolutions: str = "direct"
    compile_seconds: float = 0.0
    """Seconds of compilation and of capturing CUDA graphs, which are in no step time."""
    memory: MemoryPerDevice | None = None
    samples_per_second: float | None = None
    """Samples over wall time of all steps after the warm-up. In an asynchronous run, where the steps of workers
    overlap, the time from when every worker has finished two steps until the first worker has finished all."""
    staleness: Staleness | None = None
    """Staleness of an asynchronous run; None for other runs."""
    updates: Updates | None = None
    """Updates of an asynchronous run; None for other runs."""
    spread: str = ""
    """Strategy as shown in the table: with the options given and those it chose itself."""
    notes: list[str] = field(default_factory=list)
    """Conditions that affect the numbers: oversubscribed devices, synthetic data, an interrupted run."""
    checkpoint: Path | None = None
    failed_trace: str = ""
    """Why the timeline could not be written; empty if it was written or not requested."""
    checkpoints: Checkpoints | None = None
    restarts: list[Restart] = field(default_factory=list)
    """Restarts after lost ranks; steps and times are those after the last one."""
    already_finished: bool = False
    """Whether the resumed run had no steps left, so that nothing was trained or measured."""
    timeline: Timeline | None = None
    curve: list[tuple[float, float, int]] = field(default_factory=list)
    """For each step: seconds from the start of training to its end, its training loss and its samples."""

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        del document["timeline"], document["curve"], document["spread"], document["failed_trace"]
        if self.staleness is None:
            del document["staleness"], document["updates"]
        if self.checkpoints is None:
            del document["checkpoints"]
        document["checkpoint"] = str(self.checkpoint) if self.checkpoint else None
        document["loss"] = None if math.isnan(self.loss) else self.loss
        if not self.step_seconds.n:
            document["step_seconds"] = {"median": None, "low": None, "high": None, "n": 0}
        if self.already_finished:
            document |= {"data": None, "execution": None, "load": None, "phases_rank": None, "bytes_per_step": None}
        return document

    def __rich__(self) -> RenderableType:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim")
        facts.add_column(overflow="fold")
        for name, text in self._facts():
            facts.add_row(name, Text(text))
        parts: list[RenderableType] = [facts]
        if self.phases:
            parts += [
                Text(),
                phase_table(self.phases, "phase" if self.devices == 1 else f"phase of rank {self.phases_rank}"),
            ]
        parts += [Text(f"note: {note}", style="yellow") for note in self.notes]
        return Group(*parts)

    def _facts(self) -> list[tuple[str, str]]:
        if self.already_finished:
            return [("workload", self.workload), ("strategy", self.spread), ("checkpoint", str(self.checkpoint))]
        times = self.step_seconds
        rate = f"{self.samples_per_second:,.0f} samples/s" if self.samples_per_second else "-"
        devices = _counted(self.devices, f"{self.device_kind} device")
        if self.hosts > 1:
            devices += f" on {self.hosts} hosts" + (f" connected at {self.link}" if self.link else "")
        execution = [self.execution + (f" ({self.compile_mode})" if self.compile_mode else "")]
        execution += [self.memory_format] * (self.memory_format != "contiguous")
        execution += [f"{self.convolutions} convolutions"] * (self.convolutions != "direct")
        strategy = f"{self.spread or self.strategy} on {devices}"
        uneven = self.batch % self.batch_per_device != 0
        share = f", {'at most ' * uneven}{self.batch_per_device} per device"
        share = share if self.batch_per_device != self.batch else ""
        facts = [
            ("workload", f"{self.workload}  ({self.parameters:,} parameters; {self.data})"),
            ("strategy", f"{strategy}, {', '.join(execution)}, {self.precision}, {_LOAD_TEXT[self.load]}"),
            ("batch", f"{self.batch} global{share}"),
            ("trained", f"{self._trained()}, {_counted(self.epochs, 'full epoch')}; {self._warm_up()}"),
            (
                "step",
                f"one update by one worker: {times.text}  {rate} over all workers"
                if self.updates
                else f"{times.text}  {rate}",
            ),
        ]
        if self.staleness and self.updates:
            facts += self._asynchronous_facts(self.staleness, self.updates)
        if self.compile_seconds >= LEAST_COMPILE_SECONDS:
            facts.append(("compiled", f"in {seconds_text(self.compile_seconds)}, before the timed steps"))
        if self.epoch_seconds:
            median = sorted(self.epoch_seconds)[len(self.epoch_seconds) // 2]
            facts.append(("epoch", f"{seconds_text(median)}  (median of {len(self.epoch_seconds)}, warm-up included)"))
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
            return f"the first updates of each worker, {untimed:,} in all, are warm-up and not timed"
        if untimed == 1:
            return "the first step is warm-up and not timed"
        return f"the first {untimed:,} steps are warm-up and not timed"

    def _traffic(self, sent: BytesPerStep) -> tuple[str, str]:
        planned = bytes_text(sent.planned)
        if sent.traced_by == "counted copies" and sent.traced is not None:
            return (
                "copied",
                f"{planned} planned per step between host memory and all devices, {bytes_text(sent.traced)} counted",
            )
        traced = "not traced" if sent.traced is None else f"{bytes_text(sent.traced)} traced"
        process = "server or device" if "servers" in self.options else "device"
        unit = "update" if self.updates else "step"
        return (
            "sent",
            f"{planned} planned per {unit} over all devices, {traced}; the busiest {process} sends plus receives "
            f"{bytes_text(sent.busiest)}",
        )

    def _asynchronous_facts(self, staleness: Staleness, updates: Updates) -> list[tuple[str, str]]:
        versions = f" in {updates.versions:,} versions" if updates.versions < updates.applied else ""
        applied = f"{updates.applied:,} applied{versions}"
        by_worker = ", ".join(f"worker {worker}: {count:,}" for worker, count in updates.by_worker.items())
        histogram = ", ".join(f"{lag}: {count:,}" for lag, count in list(staleness.histogram.items())[:8])
        servers = self.options.get("servers", 1)
        note = f"; each of {servers} servers counts its part of an update" if servers > 1 else ""
        return [
            ("updates", f"{applied}, {updates.acknowledged:,} acknowledged ({by_worker})"),
            ("staleness", f"{staleness.mean:.2f} updates on average, {staleness.max} at most ({histogram}){note}"),
        ]


def _counted(number: int, noun: str, several: str = "") -> str:
    """Return text such as '1 step' or '20 steps'."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
