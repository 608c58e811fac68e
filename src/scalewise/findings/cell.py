"""Timed cells as findings see them: one workload under one strategy, over device counts and batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """One timed combination of devices and global batch."""

    devices: int
    batch: int
    samples: int
    """Per epoch."""
    epoch_seconds: float
    uncertainty: float = 0.0
    """How far the 95 % interval of the step time reaches from it, as a fraction of it; infinite of what was timed
    once, 0 where nobody noted it."""
    bytes_per_step: int | None = None
    """Sent plus received by the busiest device; None where nobody counted or planned it."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per step."""
    timed_steps: int | None = None
    """Behind its times; None where nobody noted it."""
    strategy: str = ""
    """With its options: on one device often `single`, whatever the series is of. Empty where nobody noted it."""

    @property
    def steps(self) -> int:
        """Of an epoch; the last batch may be short."""
        return -(-self.samples // self.batch)

    @property
    def batch_per_device(self) -> int:
        """The largest share: it is what a step waits for."""
        return -(-self.batch // self.devices)

    @property
    def bytes_per_epoch(self) -> int | None:
        return None if self.bytes_per_step is None else self.bytes_per_step * self.steps

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.epoch_seconds

    def surely_slower_than(self, other: Cell, margin: float) -> bool:
        """By more than the margin, and by more than what the two timings leave open of their difference."""
        open_seconds = math.hypot(self.uncertainty * self.epoch_seconds, other.uncertainty * other.epoch_seconds)
        return self.epoch_seconds - other.epoch_seconds > max(margin * other.epoch_seconds, open_seconds)

    def open_beside(self, other: Cell) -> float:
        """What the two timings leave open of the ratio of their times: the errors of two are independent."""
        return math.hypot(self.uncertainty, other.uncertainty)


@dataclass(frozen=True)
class Series:
    """The cells that may be compared: all alike but for devices and batch. One device is the baseline of the rest."""

    workload: str
    strategy: str
    """With its options, and with whatever else tells it from other series of the same measurements."""
    cells: tuple[Cell, ...]
    machine: str = ""
    when: str = ""
    kin: str = ""
    """What tells it and the series it may be compared with from others of its workload: a machine, a precision."""

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.strategy}"

    @property
    def device_counts(self) -> list[int]:
        return sorted({cell.devices for cell in self.cells})

    @property
    def batches(self) -> list[int]:
        return sorted({cell.batch for cell in self.cells})

    def line(self, devices: int) -> list[Cell]:
        """One device count, over batches."""
        return sorted((cell for cell in self.cells if cell.devices == devices), key=lambda cell: cell.batch)

    def at(self, devices: int, batch: int) -> Cell | None:
        return next((cell for cell in self.cells if (cell.devices, cell.batch) == (devices, batch)), None)

    @property
    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Each cell on several devices with that of one device at the same global batch."""
        several = sorted((cell for cell in self.cells if cell.devices > 1), key=lambda cell: (cell.devices, cell.batch))
        return [(one, cell) for cell in several if (one := self.at(1, cell.batch))]
