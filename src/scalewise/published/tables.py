"""Figures that others measured and published, each table with its source."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Source:
    """Where a table's numbers were published, and on what they were measured."""

    citation: str
    machine: str
    year: int


STEVENS = Source(
    citation="Eric Stevens, The Impact of Model Architecture and Batch Size on Data Parallel multi-GPU Training, "
    "https://github.com/Eric-D-Stevens/multi_GPU_DataParallel_Tasks",
    machine="4x GTX 1080 Ti behind one PCIe host bridge (E. Stevens)",
    year=2020,
)


@dataclass(frozen=True)
class StevensRow:
    """Mean seconds of an epoch over 2,000 clips under torch.nn.DataParallel; the first of 20 epochs is dropped."""

    workload: str
    devices: int
    batch: int
    epoch_seconds: float


@cache
def load_stevens() -> tuple[StevensRow, ...]:
    """The study's 96 cells: two models, 1 to 4 GPUs, 12 global batches."""
    return tuple(
        StevensRow(row["workload"], int(row["devices"]), int(row["batch"]), float(row["epoch_seconds"]))
        for row in rows_of("stevens_2020.csv")
    )


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """The lines of a table that ships with the package."""
    with (files(__package__) / name).open() as lines:
        yield from csv.DictReader(lines)
