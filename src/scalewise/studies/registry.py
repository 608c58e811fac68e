"""Registry of the experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from scalewise.reporting.finding import ExperimentResult  # importing it at run time would slow down `--help`


Run: TypeAlias = "Callable[..., ExperimentResult]"
"""Function `run(folder, quick, log, ...)` of an experiment; `log` gets a line of text at a time."""


@dataclass(frozen=True)
class Experiment:
    """An experiment that `scalewise reproduce` can run."""

    summary: str
    module: str
    """Module with the function `run`."""
    on_any_kind: bool = False
    """Whether `run` takes the argument `device_kind`."""
    takes_seeds: bool = False
    """Whether `run` takes the argument `seeds`."""
    shows_progress: bool = False
    """Whether `run` takes the argument `on_progress`, as `measure` does."""

    def load(self) -> Run:
        return import_module(self.module).run  # type: ignore[no-any-return]


EXPERIMENTS: dict[str, Experiment] = {
    "stevens": Experiment(
        "the 2020 study: two models on 1 to 4 devices at 12 batch sizes, and which of its findings hold here",
        "scalewise.studies.stevens",
        shows_progress=True,
    ),
    "unet": Experiment(
        "the survey's table 2: a U-Net on one device, data and model parallel on two; then larger and larger U-Nets",
        "scalewise.studies.unet",
        on_any_kind=True,
    ),
    "gpu-vs-cpu": Experiment(
        "CPU and GPU: memory bandwidth, a convolution by batch size, the cost of copies, cores left free",
        "scalewise.studies.gpu_vs_cpu",
    ),
    "choke-map": Experiment(
        "speed-up of synthetic models on two devices, by model size and compute per sample",
        "scalewise.studies.choke_map",
        shows_progress=True,
    ),
    "sync-vs-async": Experiment(
        "time to a given loss, synchronous and asynchronous: equal devices, a straggler, a dying worker, a slow link",
        "scalewise.studies.sync_vs_async",
        takes_seeds=True,
    ),
}
