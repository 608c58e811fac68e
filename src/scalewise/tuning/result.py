"""Result of `scalewise tune`: trials, the fastest options, the roofline of a step, a bar chart.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.core.statistics import Interval, interval_of
from scalewise.core.training_options import ExecutionOptions
from scalewise.core.units import bytes_text, seconds_text
from scalewise.predict.roofline import DeviceLimits, OperatorCost, Roofline
from scalewise.reporting.html_page import PagedResult
from scalewise.tuning.code_lines import code_lines

if TYPE_CHECKING:
    from scalewise.reporting.page_json import Page

BAR_CHARACTERS = 24
"""Length of the bar of the slowest trial."""
COMMAND_CHARACTERS = 68
"""Length from which a command is continued on the next line."""


@dataclass(frozen=True)
class Deviation:
    """Relative difference of one batch's loss and gradients from eager fp32 training with the same weights."""

    loss: float
    gradients: float
    """Norm of the difference of all gradients, divided by the norm of the eager fp32 gradients."""
    rounding: float
    """Norm of the difference for eager fp32 training with weights changed in their last bit: the effect of rounding."""

    @property
    def text(self) -> str:
        return f"{self.gradients:.0e}"


@dataclass(frozen=True)
class Trial:
    """Execution options with their step time, or the reason why they were skipped."""

    options: ExecutionOptions
    step_seconds: Interval = field(default_factory=lambda: interval_of([]))
    samples_per_second: float = math.nan
    speedup: float = math.nan
    """Plain eager step time divided by this one, from interleaved repeats."""
    peak_memory_bytes: int | None = None
    deviation: Deviation | None = None
    compile_seconds: float = 0.0
    """Seconds of compilation with empty caches, and of capturing CUDA graphs."""
    payback_steps: int | None = None
    """Number of steps after which compilation has paid off; None if it never does."""
    exact: bool = True
    """Whether loss and gradients deviate by no more than rounding explains."""
    skipped: str | None = None
    """Reason why there is no step time."""
    notes: tuple[str, ...] = ()

    @property
    def same_mathematics(self) -> bool:
        """Whether training gives the same weights up to rounding, by the options' definition and as measured."""
        return self.options.same_mathematics and self.exact

    def to_json(self) -> dict[str, Any]:
        times = asdict(self.step_seconds)
        known = self.skipped is None
        return {
            "options": asdict(self.options),
            "label": self.options.label,
            "step_seconds": times if known else None,
            "samples_per_second": self.samples_per_second if known else None,
            "speedup": self.speedup if known else None,
            "peak_memory_bytes": self.peak_memory_bytes,
            "deviation": asdict(self.deviation) if self.deviation else None,
            "compile_seconds": self.compile_seconds,
            "payback_steps": self.payback_steps,
            "same_mathematics": self.same_mathematics,
            "exact": self.exact,
            "skipped": self.skipped,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Trial:
        times, deviation = document["step_seconds"], document["deviation"]
        return cls(
            ExecutionOptions(**document["options"]),
            Interval(**times) if times else interval_of([]),
            math.nan if document["samples_per_second"] is None else document["samples_per_second"],
            math.nan if document["speedup"] is None else document["speedup"],
            document["peak_memory_bytes"],
            Deviation(**deviation) if deviation else None,
            document["compile_seconds"],
            document["payback_steps"],
            document["exact"],
            document["skipped"],
            tuple(document["notes"]),
        )


@dataclass(frozen=True)
class BatchTrial:
    """Throughput and memory at one batch, or the reason why it does not run."""

    batch: int
    step_seconds: float | None = None
    peak_memory_bytes: int | None = None
    skipped: str | None = None

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.step_seconds if self.step_seconds else math.nan

    def to_json(self) -> dict[str, Any]:
        rate = self.samples_per_second
        return {**asdict(self), "samples_per_second": None if math.isnan(rate) else rate}


SATURATED = 0.95
"""Share of the highest throughput at which a batch counts as saturating the device."""


@dataclass(frozen=True)
class BatchSearch:
    """Batches that were timed, all with the same options."""

    options: ExecutionOptions
    trials: tuple[BatchTrial, ...]
    limit_bytes: int
    """Memory that a step may use."""
    ended: str
    """Why no larger batch was tried."""

    @property
    def timed(self) -> list[BatchTrial]:
        return [trial for trial in self.trials if trial.step_seconds]

    @property
    def largest(self) -> int | None:
        """Largest batch that ran."""
        return max((trial.batch for trial in self.timed), default=None)

    @property
    def saturating(self) -> int | None:
        """Smallest batch that reaches 95 % of the highest throughput."""
        best = max((trial.samples_per_second for trial in self.timed), default=math.nan)
        return min((trial.batch for trial in self.timed if trial.samples_per_second >= SATURATED * best), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "options": asdict(self.options),
            "trials": [trial.to_json() for trial in self.trials],
            "limit_bytes": self.limit_bytes,
            "ended": self.ended,
            "largest": self.largest,
            "saturating": self.saturating,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchSearch:
        trials = tuple(
            BatchTrial(trial["batch"], trial["step_seconds"], trial["peak_memory_bytes"], trial["skipped"])
            for trial in document["trials"]
        )
        return cls(ExecutionOptions(**document["options"]), trials, document["limit_bytes"], document["ended"])

    def text(self) -> RenderableType:
        table = _plain_table()
        for title in ("batch", "step", "samples/s", "peak memory"):
            table.add_column(title, justify="right")
        for trial in sorted(self.trials, key=lambda trial: trial.batch):
            if trial.step_seconds is None:
                table.add_row(f"{trial.batch:,}", Text(trial.skipped or "", "dim"))
                continue
            memory = bytes_text(trial.peak_memory_bytes) if trial.peak_memory_bytes else "-"
            rate = f"{trial.samples_per_second:,.4g}"
            table.add_row(f"{trial.batch:,}", seconds_text(trial.step_seconds), rate, memory)
        summary = (
            f"Throughput saturates at batch {self.saturating:,} (95% of the highest). Largest batch that ran: "
            f"{self.largest:,}; {self.ended}."
            if self.saturating and self.largest
            else f"No batch ran; {self.ended}."
        )
        return Group(Text(f"Batches ({self.options.label}):"), table, Text(summary))


@dataclass(frozen=True)
class TuneResult(PagedResult):
    """JSON document of `scalewise tune`. The first trial is plain eager training in the given precision."""

    workload: str
    device: str
    device_kind: str
    batch: int
    precision: str
    data: str
    trials: tuple[Trial, ...]
    best_options: ExecutionOptions
    """Fastest options that preserve the mathematics of the given precision."""
    roofline: Roofline | None
    """Lower bound of the seconds of a step; None if the operators cannot be counted."""
    batches: BatchSearch | None
    versions: Mapping[str, str]
    measured_at: str
    arguments: tuple[str, ...] = ()
    """Further arguments of the command line that trains this workload, such as --input 3x224x224."""
    interrupted: bool = False
    """Whether Ctrl-C ended the search early."""
    notes: tuple[str, ...] = ()
    saved_in: str = ""
    """File of the saved result; empty if it was not saved."""

    @property
    def baseline(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """Trial of the best options."""
        return next((trial for trial in self._timed if trial.options == self.best_options), self.baseline)

    @property
    def offers(self) -> list[Trial]:
        """Trials of a lower precision that are faster than the best one. They change the training result."""
        offers = [trial for trial in self._timed if trial.options.precision != self.precision]
        return sorted(
            (trial for trial in offers if trial.speedup > self.best.speedup), key=lambda trial: -trial.speedup
        )

    @property
    def _timed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.skipped is None]

    @property
    def fraction_reached(self) -> float | None:
        """Fraction of the roofline's speed that the best trial reaches."""
        return self.roofline.fraction(self.best.step_seconds.median) if self.roofline else None

    @property
    def command(self) -> str:
        """Command that trains with the best options."""
        return self.command_with(self.best.options)

    def command_with(self, options: ExecutionOptions) -> str:
        parts = ["scalewise", "train", quote(self.workload), *map(quote, self.arguments)]
        return " ".join([*parts, "--batch", str(self.batch), *options.flags])

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "workload": self.workload,
            "device": self.device,
            "device_kind": self.device_kind,
            "batch": self.batch,
            "precision": self.precision,
            "data": self.data,
            "trials": [trial.to_json() for trial in self.trials],
            "best": best.to_json(),
            "offers": [trial.to_json() for trial in self.offers],
            "roofline_seconds": self.roofline.seconds if self.roofline else None,
            "fraction_reached": self.fraction_reached,
            "roofline": self.roofline.to_json(best.step_seconds.median) if self.roofline else None,
            "batches": self.batches.to_json() if self.batches else None,
            "command": self.command,
            "arguments": list(self.arguments),
            "code": code_lines(best.options, self.device_kind),
            "versions": dict(self.versions),
            "measured_at": self.measured_at,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
            "saved_in": self.saved_in,
        }

    def page(self) -> Page:
        from scalewise.reporting.page_json import page_of_tuning

        return page_of_tuning(self.to_json())

    def to_saved(self) -> dict[str, Any]:
        """Return the document of the saved file, from which `from_saved` restores this result."""
        return {"result": self.to_json(), "roofline": asdict(self.roofline) if self.roofline else None}

    @classmethod
    def from_saved(cls, document: Mapping[str, Any], saved_in: str) -> TuneResult:
        result, roofline = document["result"], document["roofline"]
        if roofline:
            limits = DeviceLimits(**roofline["limits"])
            operators = tuple(OperatorCost(**operator) for operator in roofline["operators"])
            roofline = Roofline(**{**roofline, "limits": limits, "operators": operators})
        return cls(
            trials=tuple(Trial.from_json(trial) for trial in result["trials"]),
            best_options=ExecutionOptions(**result["best"]["options"]),
            roofline=roofline,
            batches=BatchSearch.from_json(result["batches"]) if result["batches"] else None,
            arguments=tuple(result["arguments"]),
            notes=tuple(result["notes"]),
            saved_in=saved_in,
            **{
                name: result[name]
                for name in (
                    "workload", "device", "device_kind", "batch", "precision", "data", "versions", "measured_at",
                    "interrupted",
                )
            },
        )  # fmt: skip

    def __rich__(self) -> RenderableType:
        title = Text.assemble(
            (self.workload, "bold"),
            f" on {self.device}, batch {self.batch:,}, {self.precision}, {self.data}",
        )
        parts: list[RenderableType] = [title, Text(), self._chart(), Text(), self._details(), Text()]
        parts += [Text(self._verdict(), "bold")]
        parts += [Text(line) for line in self._offer_lines()]
        if self.roofline:
            parts += [Text(), self.roofline.text(self.best.step_seconds.median)]
        if self.batches:
            parts += [Text(), self.batches.text()]
        parts += [Text(), Text("Train with these options:"), *map(_code_line, self._command_lines())]
        if self.best is not self.baseline:
            for title_of_lines, lines in self._code():
                parts += [Text(), Text(f"{title_of_lines}:"), *(_code_line(line) for line in lines)]
        notes = [*self.notes, *self._footnotes()]
        return Group(*parts, Text(), *(Text(note, "dim") for note in notes))

    def _chart(self) -> Table:
        """Return a bar of each trial's step time."""
        slowest = max(trial.step_seconds.median for trial in self._timed)
        table = _plain_table()
        table.add_column("options", overflow="fold", max_width=34)
        table.add_column("step", justify="right", no_wrap=True)
        table.add_column("speedup", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, width=BAR_CHARACTERS)
        for trial in self._timed:
            best = trial is self.best
            seconds = trial.step_seconds.median
            bar = "█" * max(1, round(BAR_CHARACTERS * seconds / slowest))
            table.add_row(
                Text(trial.options.label, "bold" if best else ""),
                seconds_text(seconds),
                Text(f"{trial.speedup:.2f}x", "bold" if best else ""),
                Text(bar, "green" if best else "cyan"),
            )
        return table

    def _details(self) -> Table:
        """Return the other figures of each trial."""
        table = _plain_table(padding=1)
        table.add_column("options", overflow="fold", max_width=22)
        table.add_column("95% interval", no_wrap=True)
        for heading in ("samples/s", "memory", "deviation", "compile", "pays off"):
            table.add_column(heading, justify="right", no_wrap=True)
        for trial in self._timed:
            times = trial.step_seconds
            paid = f"{trial.payback_steps:,} steps" if trial.payback_steps else "never"
            table.add_row(
                trial.options.label,
                f"{seconds_text(times.low)} to {seconds_text(times.high)}" if times.n > 1 else "timed once",
                f"{trial.samples_per_second:,.4g}",
                bytes_text(trial.peak_memory_bytes) if trial.peak_memory_bytes else "-",
                trial.deviation.text if trial.deviation else "-",
                f"{trial.compile_seconds:.1f} s" if trial.compile_seconds >= 0.05 else "-",
                paid if trial.options.compiles else "-",
            )
        return table

    def _command_lines(self) -> list[str]:
        """Break the command into lines that a shell joins again."""
        lines = [""]
        for word in self.command.split(" "):
            if len(lines[-1]) + len(word) > COMMAND_CHARACTERS:
                lines.append("   ")
            lines[-1] += f" {word}" if lines[-1] else word
        return [f"{line} \\" for line in lines[:-1]] + lines[-1:]

    def _code(self) -> list[tuple[str, list[str]]]:
        """Return the lines for each kind of script; kinds with the same lines are combined."""
        kinds: dict[tuple[str, ...], list[str]] = {}
        for kind, lines in code_lines(self.best.options, self.device_kind).items():
            kinds.setdefault(tuple(lines), []).append(kind)
        return [(", ".join(names), list(lines)) for lines, names in kinds.items() if lines]

    def _verdict(self) -> str:
        best = self.best
        if best is self.baseline:
            return "No option that preserves the mathematics is faster than plain eager training here."
        rounding = "equal up to rounding" if best.deviation and best.exact else "deviation not measured"
        verdict = f"Fastest: {best.options.label}, {best.speedup:.2f}x as fast as plain eager training, {rounding}."
        if best.compile_seconds >= 1 and best.payback_steps:
            verdict += f" Compiling takes {best.compile_seconds:.0f} s and pays off after {best.payback_steps:,} steps."
        return verdict

    def _offer_lines(self) -> list[str]:
        return [
            f"Offer: {trial.options.label} would be {trial.speedup:.2f}x, but changes the training result; "
            f"to use it: --precision {trial.options.precision}"
            for trial in self.offers
        ]

    def _footnotes(self) -> list[str]:
        skipped = [f"Skipped: {trial.options.label}: {trial.skipped}" for trial in self.trials if trial.skipped]
        inexact = [
            f"Not selected: {trial.options.label} deviates by {trial.deviation.gradients:.1e} in its gradients, more "
            f"than rounding explains ({trial.deviation.rounding:.1e})."
            for trial in self._timed
            if not trial.exact and trial.options.precision == self.precision and trial.deviation
        ]
        legend = (
            "speedup: ratio of interleaved repeats; step times are scaled to it, so that drift of the machine does not "
            "decide. deviation: relative difference of the gradients of one batch from eager fp32 training."
        )
        rounding = self.baseline.deviation.rounding if self.baseline.deviation else 0.0
        if rounding:
            legend += f" Rounding alone explains about {rounding:.0e}."
        saved = f"Saved in {self.saved_in}; `train --tuned` and `advise` use it." if self.saved_in else ""
        details = [f"{self.best.options.label}: {note}." for note in self.best.notes]
        return [*details, *skipped, *inexact, legend, *filter(None, [saved])]


def payback(baseline: Sequence[float], seconds: float, compile_seconds: float) -> int | None:
    """Number of steps after which compilation has paid off; None if steps are not shorter than the baseline's."""
    gain = min(baseline) - seconds
    return math.ceil(compile_seconds / gain) if gain > 0 else None


def _plain_table(padding: int = 2) -> Table:
    return Table(box=None, header_style="dim", pad_edge=False, padding=(0, padding, 0, 0))


def _code_line(line: str) -> Text:
    """A line to copy, which the terminal must not break."""
    return Text(f"    {line}", no_wrap=True, overflow="fold")
