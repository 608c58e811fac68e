"""The answer of `scalewise advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.advice.left_out import LeftOut, left_out_text
from scalewise.advice.rows import Row
from scalewise.advice.table import table_of
from scalewise.advice.verdict import Verdict
from scalewise.clusters.cluster import Cluster, HOST_UPDATE_GBps
from scalewise.prediction.device_seconds import updates_on_host
from scalewise.prediction.predict import Predictor
from scalewise.results.printable import Printable
from scalewise.results.profile import ProfileDocument
from scalewise.results.units import seconds_text


@dataclass(frozen=True)
class Advice(Printable):
    profile: ProfileDocument
    source: str
    """Where the profile comes from."""
    cluster: Cluster
    rows: Sequence[Row]
    verdict: Verdict
    captured: ProfileDocument | None = None
    """One device with its step as a CUDA graph, which several cannot have: the best that one can do."""
    left_out: Sequence[LeftOut] = ()

    def write_trace(self, path: Path) -> None:
        """The simulated step of the best row, for Perfetto."""
        best = self.verdict.best.prediction
        step = Predictor(self.profile, self.cluster).simulate(best.strategy, best.devices, best.batch)
        step.timeline.write_chrome_trace(path)

    def to_json(self) -> dict[str, Any]:
        captured = self.captured.steps if self.captured else ()
        return {
            "workload": self.profile.workload,
            "cluster": self.cluster.name,
            "profile": {
                "source": self.source,
                "device": self.profile.device,
                "execution": self.profile.execution,
                "parameter_bytes": self.profile.parameter_bytes,
                "samples_per_epoch": self.profile.samples_per_epoch if self.rows[0].epoch_known else None,
                "batches": [step.batch for step in self.profile.steps],
                "graph_step_seconds": {str(step.batch): step.seconds for step in captured},
            },
            "rows": [row.to_json() for row in self.rows],
            "verdict": self.verdict.to_json(),
        }

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [
            Text(self.verdict.reason, "bold green" if self.verdict.add_devices else "bold yellow"),
            Text(),
        ]
        for title, rows in self._tables():
            table = table_of(rows, self.verdict.best, self.cluster.price_per_hour is not None)
            parts += [Text(f"{self.profile.workload} on {self.cluster.name}, {title}", "bold"), table, Text()]
        parts.append(Text(self._footnote(), "dim"))
        if left_out := left_out_text(self.left_out, {row.name for row in self.rows}):
            parts.append(Text(left_out, "dim"))
        if self.verdict.changes:
            over = (
                "as the speed-up over one device"
                if self.rows[0].prediction.fits
                else "by the seconds of as many samples"
            )
            parts += [Text(), Text(f"What else could be done, {over}:")]
            changes = Table.grid(padding=(0, 0, 0, 2))
            for change in self.verdict.changes:
                told = seconds_text(change.seconds) if change.speedup is None else f"{change.speedup:.2f}"
                changes.add_row(told, change.change)
            parts.append(changes)
        return Group(*parts)

    def _tables(self) -> list[tuple[str, list[Row]]]:
        """One for each global batch, or all in one where the batch of each device was asked about."""
        first = self.rows[0]
        if first.grown:
            return [(f"{first.prediction.batch:,} samples on each device", list(self.rows))]
        batches = dict.fromkeys(row.prediction.batch for row in self.rows)
        return [(f"batch {each:,}", [row for row in self.rows if row.prediction.batch == each]) for each in batches]

    def _footnote(self) -> str:
        first = self.rows[0]
        known = {row.prediction.known for row in self.rows}
        names = dict.fromkeys(row.prediction.strategy.name for row in self.rows)
        notes = [f"Predicted from {self.source}. n: devices; 90 %: how far the interval reaches, in percent;"]
        if first.grown:
            notes += ["faster: samples per second, over one device with as many samples as each of the several."]
        else:
            notes += [
                f"each: samples on one; faster: {'an epoch' if first.epoch_known else 'a step'}, than on one device "
                "at the same global batch; grown: the same with as many samples on every device as the one had, so "
                "that the batch grows with the devices."
            ]
        if self.cluster.price_per_hour is not None and (first.epoch_known or not first.grown):
            per = "an epoch" if first.epoch_known else "1,000 steps"
            notes += [f"cost: of {per}; hosts are paid for whole, however many of their devices are in use."]
        if self.captured:
            notes += [
                f"One device whose step is a CUDA graph takes {seconds_text(step.seconds)} at batch {step.batch}."
                for step in self.captured.steps[-1:]
            ]
        on_host = [name for name in names if updates_on_host(name, self.cluster)]
        if on_host and self.cluster.devices[0].host_memory_GBps is None:
            notes += [
                f"{', '.join(on_host)}: the update is made in host memory, which is assumed, not measured: Adam at "
                f"{HOST_UPDATE_GBps:g} GB/s."
            ]
        notes += ["~ interpolated between profiled batches."] if "interpolated" in known else []
        notes += ["? outside the profiled batches, a guess."] if "extrapolated" in known else []
        return " ".join(notes)
