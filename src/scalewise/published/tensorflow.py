"""TensorFlow's 2017 benchmarks: five networks on 1 to 64 GPUs, variables in several places."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from scalewise.published.tables import Source, rows_of

TENSORFLOW = Source(
    citation="TensorFlow performance benchmarks (tf_cnn_benchmarks), https://github.com/tensorflow/tensorflow; "
    "https://github.com/tensorpack/benchmarks for its own rows",
    machine="DGX-1 with P100; 8 x K80 on Google and on Amazon, 10 GbE between hosts",
    year=2017,
)


@dataclass(frozen=True)
class TensorFlowRow:
    source: str
    machine: str
    """A cluster of the catalogue."""
    variables: str
    """Where they live: on host, on devices, replicated by NCCL or by copies, on distributed servers."""
    model: str
    devices: int
    hosts: int
    batch_per_device: int
    data: str
    images_per_second: float

    @property
    def step_seconds(self) -> float:
        return self.devices * self.batch_per_device / self.images_per_second

    @property
    def series(self) -> tuple[str, ...]:
        """What it shares with its one-GPU row."""
        return (self.source, self.machine, self.variables, self.model, str(self.batch_per_device), self.data)


@cache
def load_tensorflow() -> tuple[TensorFlowRow, ...]:
    return tuple(
        TensorFlowRow(
            source=row["source"],
            machine=row["machine"],
            variables=row["variables"],
            model=row["model"],
            devices=int(row["devices"]),
            hosts=int(row["hosts"]),
            batch_per_device=int(row["batch_per_device"]),
            data=row["data"],
            images_per_second=float(row["images_per_second"]),
        )
        for row in rows_of("tensorflow_2017.csv")
    )
