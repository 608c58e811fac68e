"""What was seen of somebody's own DDP script."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scalewise.results.phase_table import phase_table
from scalewise.results.printable import Printable
from scalewise.results.statistics import Interval
from scalewise.results.units import bytes_text

WARM_UP_STEPS = 5


@dataclass(frozen=True)
class StepReport(Printable):
    """Where the steps of a watched DDP model go, on this rank."""

    rank: int
    devices: int
    steps: int
    step_seconds: Interval
    phases: dict[str, float]
    gradient_bytes: int
    sent_bytes_per_step: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> RenderableType:
        if self.steps == 0:
            return Text("scalewise: no whole training step was seen yet")
        if not self.phases:
            seen = f"{self.steps} training step{'s' * (self.steps > 1)} seen"
            return Text(f"scalewise: {seen}, and the first {WARM_UP_STEPS} are warm-up: none was timed yet")
        waiting = self.phases.get("reduce", 0.0) / sum(self.phases.values())
        sent = "" if self.sent_bytes_per_step is None else f", {bytes_text(self.sent_bytes_per_step)} sent per step"
        return Group(
            Text(
                f"rank {self.rank} of {self.devices}: {self.steps} steps, "
                f"each {self.step_seconds.text}, "
                f"{bytes_text(self.gradient_bytes)} of gradients{sent}"
            ),
            Text(),
            phase_table(self.phases),
            Text(),
            Text(f"{waiting:.0%} of a step waits for gradients of other devices (beyond what backward hides)"),
        )
