"""One timed cell: a line of `measurements.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from scalewise.results.statistics import Interval
from scalewise.results.train import BytesPerStep

SCHEMA: Final = 1
IDENTIFYING_FIELDS = (
    "workload", "strategy", "options", "devices", "device_kind", "hosts", "link", "batch", "batch_per_device",
    "precision", "optimizer", "protocol", "execution",
)  # fmt: skip
Status = Literal["ok", "oom", "failed", "skipped"]
Protocol = Literal["quick", "paper"]

INTERVAL_NOT_REACHED = "interval-not-reached"
DRIFT = "drift"
OVERSUBSCRIBED = "oversubscribed"
NO_GRAPH = "no-graph"
"""Flags: the budget was spent first; the machine's speed moved meanwhile; cpu devices shared cores; `auto` ended up
eager where a graph was expected."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What identifies a cell is everything before `step_seconds`."""

    schema: Literal[1] = SCHEMA
    workload: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    devices: int
    device_kind: str
    hosts: int = 1
    link: str | None = None
    batch: int
    """Global."""
    batch_per_device: int
    precision: str = "fp32"
    optimizer: str
    protocol: Protocol
    execution: str
    """eager or graph: as it ran, or as it would have."""
    step_seconds: Interval | None = None
    epoch_seconds: float | None = None
    """One epoch: in `quick` composed of steps and overhead, in `paper` the median of those run."""
    phases: dict[str, float] = field(default_factory=dict)
    bytes_per_step: BytesPerStep | None = None
    peak_memory_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None
    """Why it is not ok."""
    flags: list[str] = field(default_factory=list)
    environment: str
    """Id in `environment.json`."""
    started: str
    """ISO 8601, in UTC."""

    def __post_init__(self) -> None:
        if self.status == "ok" and self.step_seconds is None and self.epoch_seconds is None:
            raise ValueError("status is 'ok' but there are neither step_seconds nor epoch_seconds")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status is '{self.status}' without a reason")

    @property
    def identity(self) -> Hashable:
        """The same for two measurements of one cell."""
        return identity_of(vars(self))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_line(self) -> bytes:
        return json.dumps(self.to_json(), allow_nan=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Measurement:
        """Raises pydantic's ValidationError, which is a ValueError."""
        return _adapter().validate_json(line)


def identity_of(fields: Mapping[str, Any]) -> Hashable:
    """Of a cell that need not have been measured yet."""
    return tuple(
        tuple(sorted(fields[name].items())) if name == "options" else fields[name] for name in IDENTIFYING_FIELDS
    )


@cache
def _adapter() -> TypeAdapter[Measurement]:
    return TypeAdapter(Measurement)
