"""Reproduction of the survey's U-Net comparison on this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from scalewise.core.errors import RunFailed
from scalewise.core.files import write_atomically
from scalewise.core.timeline import typical_step
from scalewise.core.units import bytes_text, seconds_text
from scalewise.formats.store import Measurement, Store
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.devices import settle
from scalewise.launch.placement import Placement
from scalewise.models.describe import describe
from scalewise.published.tables import DATA_PARALLEL, SINGLE, SURVEY, SURVEY_EPOCH_SECONDS
from scalewise.reporting.finding import ExperimentResult, machine_text, write_markdown
from scalewise.reporting.report import remarks_on
from scalewise.runtime.device_memory import MEMORY_LIMIT, memory_limit_bytes
from scalewise.studies.unet_figures import draw_steps, draw_sweep, draw_table
from scalewise.studies.unet_runs import (
    NAMES,
    NOT_STARTED,
    StrategyRun,
    SweepPoint,
    apart,
    as_measured,
    comparison,
    headline,
    phases_by_rank,
    speedup,
    survey_speedup,
    sweep_words,
)
from scalewise.sweep.environment import cores_in_use, load_remarks, not_begun_remarks
from scalewise.sweep.measure import measure
from scalewise.sweep.result import MeasureResult, cell_line
from scalewise.training.memory_plan import MemoryRequest, planned_on
from scalewise.training.train import train


@dataclass(frozen=True)
class Setup:
    """Models, batches and limits of the experiment on one kind of device."""

    table: str
    """U-Net of the comparison with the survey's table."""
    table_batch: int
    models: tuple[tuple[int, int], ...]
    """U-Nets of the sweep as (width, depth), the smallest first."""
    batch: int
    """Global batch of the sweep."""
    size: int
    """Image size of the sweep."""
    limit_GB: float
    """Memory limit per device in the sweep."""
    budget: float
    budget_total: float | None = None
    interval: float = 2.0
    samples: int | None = None

    def name(self, width: int, depth: int) -> str:
        return f"unet:width={width},depth={depth},size={self.size}"


CPU = Setup(
    "unet:width=16", 32, ((8, 2), (8, 3), (16, 3), (32, 3), (32, 4), (64, 4), (64, 5)), 8, 32, 0.4, 30.0
)  # fmt: skip
CPU_QUICK = replace(
    CPU, table_batch=16, models=((8, 2), (16, 3), (32, 4), (64, 4)), budget=3.0, budget_total=70.0, interval=5.0,
    samples=256,
)  # fmt: skip
GPU = Setup(
    "unet:full", 32, ((32, 3), (32, 4), (64, 4), (96, 4), (128, 4), (128, 5)), 16, 256, 8.0, 30.0
)  # fmt: skip
"""Setup for GPUs; 8 GB is the memory of the survey's GPUs."""
GPU_QUICK = replace(
    GPU, table_batch=8, models=((64, 4), (128, 4), (128, 5)), batch=8, budget=4.0, budget_total=80.0, interval=5.0,
    samples=64,
)  # fmt: skip
"""Quick setup for GPUs. Batches are small because slices exchange activations over the host's loopback, which takes
seconds per step at batch 32."""


def nearest_first(names: Sequence[str], fits: Sequence[bool]) -> list[str]:
    """Order models of growing size by their distance from the first one that does not fit in memory.

    The most informative models are then measured even if time runs out. With four models of which the last does not
    fit, the order is 4 3 2 1; with six of which four fit, 5 4 6 3 2 1.
    """
    edge = fits.index(False) if False in fits else len(names)
    return [names[index] for index in sorted(range(len(names)), key=lambda index: (abs(index - edge + 0.5), -index))]


DEVICES = 2
TABLE_STRATEGIES = ("mirrored", "layers", "pipeline")
"""Strategies compared with one device: the survey's data and model parallelism, and a pipeline."""
SWEEP_STRATEGIES = ("mirrored", "pipeline", "sharded", SINGLE)
"""Strategies of the sweep in measuring order. `layers` is left out because it needs as much memory as a pipeline and is
slower; `sharded` splits a model most evenly."""
RECORDED_STEPS = 16
COLUMNS = ["strategy", "survey epoch", "epoch here", "computing", "memory planned", "memory measured"]


def run(out: Path, quick: bool, log: Callable[[str], None], device_kind: str = "auto") -> ExperimentResult:
    """Run the experiment, resuming if the folder has measurements; under three minutes on two cores if `quick`."""
    kind = settle(Placement(DEVICES, _kind(device_kind))).device_kind
    setup = (CPU_QUICK if quick else CPU) if kind == "cpu" else (GPU_QUICK if quick else GPU)
    if limit := memory_limit_bytes():
        setup = replace(setup, limit_GB=limit / 1e9)
    remarks = load_remarks(cores_in_use(), len(allowed_cores()))
    log(f"measuring {setup.table} at batch {setup.table_batch} on one and on {DEVICES} {kind} devices ...")
    first = _measure(out, [setup.table], setup, setup.table_batch, (SINGLE, *TABLE_STRATEGIES), kind, log)
    runs = _strategy_runs(setup, first.measurements, kind, log)
    models = [setup.name(*model) for model in setup.models]
    log(f"measuring {len(models)} U-Nets of growing size with {setup.limit_GB:g} GB per device ...")
    with _limited(setup.limit_GB):
        planned = _planned(setup, models, kind)
        fits = [(planned[name, DATA_PARALLEL] or 0) <= setup.limit_GB * 1e9 for name in models]
        second = _measure(out, nearest_first(models, fits), setup, setup.batch, SWEEP_STRATEGIES, kind, log)
    remarks += not_begun_remarks(first.not_begun + second.not_begun)
    remarks += remarks_on([cell for cell in (*first.measurements, *second.measurements) if cell.status != "oom"])
    log("drawing ...")
    measured = {(cell.workload, cell.strategy): cell for cell in second.measurements}
    points = [
        _point(name, strategy, describe(name).parameters, planned[name, strategy], measured.get((name, strategy)))
        for name in models
        for strategy in SWEEP_STRATEGIES
    ]
    machine = machine_text(Store.environments(out)[first.measurements[0].environment], kind)
    return conclude(out, setup, runs, points, machine, remarks, len(first.failed) + len(second.failed))


def conclude(
    out: Path,
    setup: Setup,
    runs: dict[str, StrategyRun],
    points: Sequence[SweepPoint],
    machine: str,
    remarks: Sequence[str] = (),
    failed: int = 0,
) -> ExperimentResult:
    """Draw the figures and write the findings."""
    figures = draw_table(runs, machine, out) + draw_steps(runs, machine, out)
    if any(point.samples_per_second for point in points):
        figures += draw_sweep(points, setup.limit_GB, setup.batch, machine, out)
    page, numbers = out / "findings.md", out / "unet.json"
    result = ExperimentResult(
        "unet",
        [*comparison(runs), *sweep_words(points, setup.limit_GB), *apart(runs), *remarks],
        COLUMNS,
        [_row(name, runs) for name in NAMES if name in runs],
        figures,
        [page, numbers],
        {
            "survey_epoch_seconds": SURVEY_EPOCH_SECONDS,
            "source": SURVEY.citation,
            "machine": machine,
            "workload": setup.table,
            "batch": setup.table_batch,
            "ran": {name: asdict(run) for name, run in runs.items()},
            "limit_GB": setup.limit_GB,
            "sweep": [asdict(point) for point in points],
        },
        headline=headline(machine, runs),
        failed=failed,
    )
    write_atomically(numbers, json.dumps(result.to_json(), indent=2).encode())
    write_markdown(page, result.to_markdown())
    return result


def _measure(
    out: Path,
    workloads: list[str],
    setup: Setup,
    batch: int,
    strategies: Sequence[str],
    kind: str,
    log: Callable[[str], None],
) -> MeasureResult:
    return measure(
        workloads,
        out=out,
        strategy=strategies,
        devices=[DEVICES],
        batch=[batch],
        device_kind=kind,
        execution="eager",  # several devices run eagerly, so the baseline must not use a CUDA graph
        samples=setup.samples,
        interval=setup.interval,
        budget=setup.budget,
        budget_total=setup.budget_total,
        resume=True,
        on_cell=lambda cell: log(f"  {cell_line(cell)}"),
    )


def _strategy_runs(
    setup: Setup, measurements: Sequence[Measurement], kind: str, log: Callable[[str], None]
) -> dict[str, StrategyRun]:
    """Combine the measured cells with a short run of each strategy that records phases, bytes and memory."""
    runs: dict[str, StrategyRun] = {}
    for cell in measurements:
        if cell.epoch_seconds is None or cell.step_seconds is None:
            log(f"  {cell.strategy} failed: {cell.reason}")
            continue
        log(f"  running {cell.strategy} again to record the phases of every device ...")
        result = train(
            setup.table,
            strategy=cell.strategy,
            devices=cell.devices,
            device_kind=kind,
            batch=setup.table_batch,
            steps=RECORDED_STEPS,
            samples=setup.samples,
            execution="eager",
            slice_percent=100 // DEVICES if kind == "slice" else None,
        )
        assert result.timeline is not None
        assert result.memory is not None
        sent = result.bytes_per_step
        run = StrategyRun(
            cell.epoch_seconds,
            cell.step_seconds.median,
            phases_by_rank(result.timeline, cell.devices),
            sent.planned if sent.traced is None else sent.traced,
            result.memory.planned,
            result.memory.measured,
            typical_step(result.timeline),
        )
        runs[cell.strategy] = as_measured(run)
    if SINGLE not in runs:
        raise RunFailed("the U-Net could not be measured on one device, so there is no baseline to compare with")
    return runs


def _planned(setup: Setup, models: Sequence[str], kind: str) -> dict[tuple[str, str], int | None]:
    """Return the largest planned memory of any device, by model and strategy."""
    cells = [(name, strategy) for name in models for strategy in SWEEP_STRATEGIES]
    requests = [
        MemoryRequest(name, strategy, 1 if strategy == SINGLE else DEVICES, setup.batch, setup.samples)
        for name, strategy in cells
    ]
    plans = planned_on(kind, requests, 100 // DEVICES)
    return {
        cell: max((memory.total for memory in ranks), default=None) for cell, ranks in zip(cells, plans, strict=True)
    }


def _point(name: str, strategy: str, parameters: int, planned: int | None, cell: Measurement | None) -> SweepPoint:
    if cell is None:
        return SweepPoint(name, parameters, strategy, None, NOT_STARTED, planned)
    step = cell.step_seconds
    return SweepPoint(
        name,
        parameters,
        strategy,
        cell.batch / step.median if step else None,
        cell.status,
        planned,
        cell.peak_memory_bytes,
        cell.phases.get("reduce", 0.0) / step.median if step else 0.0,
    )


@contextmanager
def _limited(limit_GB: float) -> Iterator[None]:
    """Limit the memory of every device opened in this context."""
    before = os.environ.get(MEMORY_LIMIT)
    os.environ[MEMORY_LIMIT] = str(limit_GB)
    try:
        yield
    finally:
        if before is None:
            del os.environ[MEMORY_LIMIT]
        else:
            os.environ[MEMORY_LIMIT] = before


def _kind(device_kind: str) -> str:
    """Resolve 'auto': GPUs if there are two, slices of a single GPU, else CPU cores."""
    if device_kind != "auto":
        return device_kind
    gpus = torch.cuda.device_count()
    if gpus >= DEVICES:
        return "cuda"
    return "slice" if gpus and shutil.which("nvidia-cuda-mps-control") else "cpu"


def _row(name: str, runs: dict[str, StrategyRun]) -> list[str]:
    here, survey = runs[name], SURVEY_EPOCH_SECONDS.get(name)
    computing = " / ".join(f"{here.computing(rank):.0%}" for rank in range(len(here.ranks)))
    return [
        name,
        f"{survey:g} s, {survey_speedup(name):.2f}x" if survey else "-",
        f"{seconds_text(here.epoch_seconds)}, {speedup(runs, name):.2f}x",
        computing,
        bytes_text(here.planned_bytes) if here.planned_bytes else "-",
        bytes_text(here.measured_bytes) if here.measured_bytes else "-",
    ]
