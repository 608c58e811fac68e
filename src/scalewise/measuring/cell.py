"""One cell of a grid, before it is measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from scalewise.results.measurement import Measurement, Protocol, identity_of
from scalewise.strategies.strategy import Strategy, batch_shares, options_of
from scalewise.strategies.written import written


@dataclass(frozen=True)
class Cell:
    """What identifies a measurement; `execution` is the one that is expected."""

    workload: str
    strategy: Strategy
    devices: int
    device_kind: str
    hosts: int
    link: str | None
    batch: int
    precision: str
    optimizer: str
    protocol: Protocol
    execution: str

    @property
    def batch_per_device(self) -> int:
        return -(-self.batch // batch_shares(self.strategy, self.devices))

    @property
    def identity(self) -> Hashable:
        return identity_of(self.fields())

    @property
    def text(self) -> str:
        """'linear, mirrored on 2 cpu devices, batch 20'."""
        where = f"{self.devices} {self.device_kind} device{'s' if self.devices > 1 else ''}"
        if self.link:
            where += f" on {self.hosts} host{'s' if self.hosts > 1 else ''} at {self.link}"
        strategy = written(self.strategy.name, options_of(self.strategy))
        return f"{self.workload}, {strategy} on {where}, batch {self.batch}"

    def fields(self) -> dict[str, Any]:
        """The identifying fields of its measurement."""
        return {
            "workload": self.workload,
            "strategy": self.strategy.name,
            "options": options_of(self.strategy),
            "devices": self.devices,
            "device_kind": self.device_kind,
            "hosts": self.hosts,
            "link": self.link,
            "batch": self.batch,
            "batch_per_device": self.batch_per_device,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "protocol": self.protocol,
            "execution": self.execution,
        }

    def measured(self, **found: Any) -> Measurement:
        return Measurement(**{**self.fields(), **found})
