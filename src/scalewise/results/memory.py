"""What a run needed of a device's memory, planned beside measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.results.units import bytes_text


@dataclass(frozen=True)
class MemoryPerDevice:
    """Bytes at the peak of a step on the rank that needs the most, as planned and as measured."""

    planned: int | None
    """None: the model cannot be counted without real numbers."""
    measured: int | None
    """None: not measured, for a reason."""
    parts: dict[str, int]
    """Of what is planned, at its peak."""
    planned_by_rank: list[int]
    measured_by_rank: list[int | None]
    measured_by: Literal["cuda allocator", "cpu allocator"]
    """Torch's: on a GPU over the whole run, samples that live there included; on the CPU over two steps of the warm-up,
    without the samples."""
    why_not_measured: str = ""

    @property
    def text(self) -> str:
        known = {"planned": self.planned, "measured": self.measured}
        figures = ", ".join(f"{bytes_text(size)} {how}" for how, size in known.items() if size)
        largest = sorted(((size, name) for name, size in self.parts.items() if size), reverse=True)
        made_of = ", ".join(f"{name} {bytes_text(size)}" for size, name in largest)
        text = f"{figures} at the peak on a device" + (f" ({made_of})" if made_of else "")
        if not self.planned:
            return f"{text}; not planned"
        return text if self.measured else f"{text}; not measured: {self.why_not_measured}"
