"""How a framework treats communication beside compute: constants that no specification holds, each with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Conduct:
    """What happens to compute while others are talked to."""

    overlap: float
    """The part of a transfer's seconds that costs compute nothing when both could run at once."""
    slowdown: float = 1.0
    """Seconds of compute on several devices for one on a device alone, beyond what the bytes explain."""
    source: str = ""


DDP = Conduct(0.5, 1.05, "DDP on hosts of 4 x T4 (siasosp23/artifacts): half is hidden, compute slows by 5 %")
THREADS = Conduct(0.0, 1.0, "torch.nn.DataParallel on 4 x GTX 1080 Ti (E. Stevens 2020): nothing overlaps")
TENSORFLOW = Conduct(0.2, 1.04, "tf_cnn_benchmarks 2017: 15 to 30 % is hidden, compute slows by 3 to 6 %")
SOCKETS = Conduct(1.0, 1.0, "gloo between CPU ranks: its cost to the cores is counted by the byte")


def conduct_of(engine: str | None, backend: str) -> Conduct:
    """Of our own engines."""
    if engine == "threads":
        return THREADS
    return SOCKETS if backend == "gloo" else DDP
