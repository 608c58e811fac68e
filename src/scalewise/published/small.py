"""Small published tables: DDP on V100, GPT-2 with and without NVLink, layers and pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from scalewise.published.tables import Source, rows_of

SMALL = Source(
    citation="https://github.com/pytorch/pytorch (DDP), https://github.com/huggingface/transformers (GPT-2), "
    "https://github.com/pytorch/tutorials (ResNet-50), https://github.com/kakaobrain/torchgpipe (pipelines)",
    machine="8 x V100 with NVLink, 2 x TITAN RTX, two unnamed GPUs, 8 x P40",
    year=2020,
)


@dataclass(frozen=True)
class SmallRow:
    table: str
    model: str
    machine: str
    """A cluster of the catalogue; of two unnamed GPUs one that could be it."""
    strategy: str
    """'alone' is one device without any."""
    devices: int
    hosts: int
    batch_per_device: int
    micro_batches: int
    seconds: float
    """Of a step; of a sample where the batch is not told."""
    stages: tuple[float, ...] = ()
    """Parts of the forward flops: the published cut, counted from the model's definition. Empty: equal ones."""


@cache
def load_small() -> tuple[SmallRow, ...]:
    return tuple(
        SmallRow(
            table=row["table"],
            model=row["model"],
            machine=row["machine"],
            strategy=row["strategy"],
            devices=int(row["devices"]),
            hosts=int(row["hosts"]),
            batch_per_device=int(row["batch_per_device"]),
            micro_batches=int(row["micro_batches"]),
            seconds=float(row["seconds"]),
            stages=tuple(map(float, row["stages"].split())),
        )
        for row in rows_of("small_tables.csv")
    )
