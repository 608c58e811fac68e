"""DDP steps on hosts of four T4, in every placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from scalewise.published.tables import Source, rows_of

T4 = Source(
    citation="Sia (SOSP 2023), profiled step times, https://github.com/siasosp23/artifacts",
    machine="1 to 4 AWS g4dn.12xlarge: 4 x T4 on PCIe each",
    year=2023,
)
MODELS = {
    "bert": "BERT base",
    "cifar10": "ResNet-18",
    "deepspeech2": "DeepSpeech2",
    "imagenet": "ResNet-50",
    "ncf": "NCF",
    "yolov3": "YOLOv3",
}


@dataclass(frozen=True)
class T4Row:
    model: str
    per_host: tuple[int, ...]
    """GPUs used on each host: (1, 2) is one on one host and two on another."""
    batch_per_device: int
    step_seconds: float

    @property
    def devices(self) -> int:
        return sum(self.per_host)


@cache
def load_t4() -> tuple[T4Row, ...]:
    return tuple(
        T4Row(row["model"], tuple(map(int, row["placement"])), int(row["batch_per_device"]), float(row["step_seconds"]))
        for row in rows_of("t4_2023.csv")
    )
