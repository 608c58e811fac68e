"""What a run is asked to do, as it travels to its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalewise.data.data import DataRequest
from scalewise.step.settings import Settings
from scalewise.strategies.strategy import Strategy
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload


@dataclass(frozen=True)
class Request:
    """Workloads are named, not sent: every rank resolves the name itself. A Workload object stays in its process."""

    workload: str | Workload
    strategy: Strategy
    settings: Settings
    data: DataRequest = field(default_factory=DataRequest)
    input_shape: str | None = None
    classes: int | None = None

    def resolved(self) -> Workload:
        if isinstance(self.workload, Workload):
            return self.workload
        return resolve(self.workload, self.input_shape, self.classes)
