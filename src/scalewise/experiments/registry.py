"""The experiments there are: what each shows, and where its code is, so that listing them loads none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from scalewise.results.experiment import ExperimentResult  # at run time it would slow down `--help`

Tell = Callable[[str], None]
"""Told what is being done, a line at a time."""
Run: TypeAlias = "Callable[..., ExperimentResult]"
"""(folder to write to, quick, tell), and what else its experiment says it takes."""


@dataclass(frozen=True)
class Experiment:
    summary: str
    module: str
    """Has a function `run`."""
    on_any_kind: bool = False
    """Its `run` takes a `device_kind` too."""
    takes_seeds: bool = False
    """Its `run` takes `seeds` too."""
    shows_progress: bool = False
    """Its `run` takes `on_progress`, as `measure` does."""

    def load(self) -> Run:
        return import_module(self.module).run  # type: ignore[no-any-return]


EXPERIMENTS: dict[str, Experiment] = {
    "stevens": Experiment(
        "the 2020 study: two models, 1 to 4 devices, 12 batches; who gains, who chokes, and which findings hold here",
        "scalewise.experiments.stevens",
        shows_progress=True,
    ),
    "unet": Experiment(
        "the survey's table 2: a U-Net on one device, data and model parallel on two; then models that grow",
        "scalewise.experiments.unet",
        on_any_kind=True,
    ),
    "gpu-vs-cpu": Experiment(
        "memory bandwidth, a convolution over batch sizes, tasks too small to move, cores left free",
        "scalewise.experiments.gpu_vs_cpu",
    ),
    "choke-map": Experiment(
        "synthetic models over the plane of model size and compute per sample: who gains from a second device",
        "scalewise.experiments.choke_map",
        shows_progress=True,
    ),
    "sync-vs-async": Experiment(
        "seconds to a loss, synchronous against asynchronous: equal devices, a straggler, a death, a slow link",
        "scalewise.experiments.sync_vs_async",
        takes_seeds=True,
    ),
}
