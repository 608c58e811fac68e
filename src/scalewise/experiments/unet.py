"""The survey's table 2: a U-Net on one device, data parallel and model parallel on two; then models that grow."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch

from scalewise.atomic import write_atomically
from scalewise.errors import RunFailed
from scalewise.experiments.remarks import cores_in_use, load_remarks, not_begun_remarks
from scalewise.experiments.unet_figure import draw_steps, draw_sweep, draw_table
from scalewise.experiments.unet_setup import CPU, CPU_QUICK, GPU, GPU_QUICK, Setup, nearest_first
from scalewise.experiments.unet_words import (
    NAMES,
    NOT_BEGUN,
    Ran,
    Spot,
    apart,
    as_measured,
    comparison,
    headline,
    phases_by_rank,
    speedup,
    survey_speedup,
    sweep_words,
    typical_step,
)
from scalewise.findings.machine import machine_text
from scalewise.measuring.measured import MeasureResult, cell_line
from scalewise.published.unet import DATA_PARALLEL, SINGLE, SURVEY, SURVEY_EPOCH_SECONDS
from scalewise.results.experiment import ExperimentResult
from scalewise.results.measurement import Measurement
from scalewise.results.store import Store
from scalewise.results.units import bytes_text, seconds_text
from scalewise.session.cores import allowed_cores
from scalewise.session.devices import settle
from scalewise.session.placement import Placement
from scalewise.step.room import MEMORY_LIMIT, memory_limit_bytes
from scalewise.verbs.describe import describe
from scalewise.verbs.measure import measure
from scalewise.verbs.memory import Asked, planned_on
from scalewise.verbs.report import remarks_on
from scalewise.verbs.train import train

DEVICES = 2
WANTED = ("mirrored", "layers", "pipeline")
"""Beside one device: the survey's data parallelism, its model parallelism, and that with micro-batches."""
GROWING = ("mirrored", "pipeline", "sharded", SINGLE)
"""Where models grow: without turns, which need the memory of a pipeline and are slower, but with what divides a model
most evenly; one device last, for the question is what two do."""
WATCHED_STEPS = 16
COLUMNS = ["an epoch", "survey", "here", "computing", "memory planned", "measured"]


def run(out: Path, quick: bool, tell: Callable[[str], None], device_kind: str = "auto") -> ExperimentResult:
    """Under three minutes if quick, on two cores. A folder with measurements is gone on with."""
    kind = settle(Placement(DEVICES, _kind(device_kind))).device_kind
    setup = (CPU_QUICK if quick else CPU) if kind == "cpu" else (GPU_QUICK if quick else GPU)
    if given := memory_limit_bytes():
        setup = replace(setup, limit_GB=given / 1e9)
    remarks = load_remarks(cores_in_use(), len(allowed_cores()))
    tell(f"{setup.table} at batch {setup.table_batch} on one {kind} device and on {DEVICES} ...")
    first = _measure(out, [setup.table], setup, setup.table_batch, (SINGLE, *WANTED), kind, tell)
    ran = _ran(setup, first.measurements, kind, tell)
    models = [setup.name(*model) for model in setup.models]
    tell(f"{len(models)} models that grow, each device with {setup.limit_GB:g} GB ...")
    with _limited(setup.limit_GB):
        planned = _planned(setup, models, kind)
        fits = [(planned[name, DATA_PARALLEL] or 0) <= setup.limit_GB * 1e9 for name in models]
        second = _measure(out, nearest_first(models, fits), setup, setup.batch, GROWING, kind, tell)
    remarks += not_begun_remarks(first.not_begun + second.not_begun)
    remarks += remarks_on([each for each in (*first.measurements, *second.measurements) if each.status != "oom"])
    tell("drawing ...")
    found = {(cell.workload, cell.strategy): cell for cell in second.measurements}
    spots = [
        _spot(name, strategy, describe(name).parameters, planned[name, strategy], found.get((name, strategy)))
        for name in models
        for strategy in GROWING
    ]
    machine = machine_text(Store.environments(out)[first.measurements[0].environment], kind)
    return conclude(out, setup, ran, spots, machine, remarks, len(first.failed) + len(second.failed))


def conclude(
    out: Path,
    setup: Setup,
    ran: dict[str, Ran],
    spots: Sequence[Spot],
    machine: str,
    remarks: Sequence[str] = (),
    failed: int = 0,
) -> ExperimentResult:
    """Figures and the written comparison."""
    figures = draw_table(ran, machine, out) + draw_steps(ran, machine, out)
    if any(spot.samples_per_second for spot in spots):
        figures += draw_sweep(spots, setup.limit_GB, setup.batch, machine, out)
    page, numbers = out / "findings.md", out / "unet.json"
    result = ExperimentResult(
        "unet",
        [*comparison(ran), *sweep_words(spots, setup.limit_GB), *apart(ran), *remarks],
        COLUMNS,
        [_row(name, ran) for name in NAMES if name in ran],
        figures,
        [page, numbers],
        {
            "survey_epoch_seconds": SURVEY_EPOCH_SECONDS,
            "source": SURVEY.citation,
            "machine": machine,
            "workload": setup.table,
            "batch": setup.table_batch,
            "ran": {name: asdict(each) for name, each in ran.items()},
            "limit_GB": setup.limit_GB,
            "sweep": [asdict(spot) for spot in spots],
        },
        headline=headline(machine, ran),
        failed=failed,
    )
    write_atomically(numbers, json.dumps(result.to_json(), indent=2).encode())
    write_atomically(page, result.to_markdown().encode())
    return result


def _measure(
    out: Path,
    workloads: list[str],
    setup: Setup,
    batch: int,
    strategies: Sequence[str],
    kind: str,
    tell: Callable[[str], None],
) -> MeasureResult:
    return measure(
        workloads,
        out=out,
        strategy=strategies,
        devices=[DEVICES],
        batch=[batch],
        device_kind=kind,
        execution="eager",  # on a GPU a graph on one device would be compared with eager ranks
        samples=setup.samples,
        interval=setup.interval,
        budget=setup.budget,
        budget_total=setup.budget_total,
        resume=True,
        on_cell=lambda cell: tell(f"  {cell_line(cell)}"),
    )


def _ran(setup: Setup, measurements: Sequence[Measurement], kind: str, tell: Callable[[str], None]) -> dict[str, Ran]:
    """What the cells took, and a short run of each that shows every rank: phases, bytes, memory."""
    ran: dict[str, Ran] = {}
    for cell in measurements:
        if cell.epoch_seconds is None or cell.step_seconds is None:
            tell(f"  {cell.strategy} did not come through: {cell.reason}")
            continue
        tell(f"  {cell.strategy} once more, to see what every device does ...")
        result = train(
            setup.table,
            strategy=cell.strategy,
            devices=cell.devices,
            device_kind=kind,
            batch=setup.table_batch,
            steps=WATCHED_STEPS,
            samples=setup.samples,
            execution="eager",
            slice_percent=100 // DEVICES if kind == "slice" else None,
        )
        assert result.timeline is not None
        assert result.memory is not None
        sent = result.bytes_per_step
        told = Ran(
            cell.epoch_seconds,
            cell.step_seconds.median,
            phases_by_rank(result.timeline, cell.devices),
            sent.planned if sent.traced is None else sent.traced,
            result.memory.planned,
            result.memory.measured,
            typical_step(result.timeline),
        )
        ran[cell.strategy] = as_measured(told)
    if SINGLE not in ran:
        raise RunFailed("one device did not train the U-Net, and nothing can be compared with it")
    return ran


def _planned(setup: Setup, models: Sequence[str], kind: str) -> dict[tuple[str, str], int | None]:
    """Memory of the fullest device, by model and strategy."""
    cells = [(name, strategy) for name in models for strategy in GROWING]
    asked = [
        Asked(name, strategy, 1 if strategy == SINGLE else DEVICES, setup.batch, setup.samples)
        for name, strategy in cells
    ]
    found = planned_on(kind, asked, 100 // DEVICES)
    return {
        cell: max((memory.total for memory in ranks), default=None) for cell, ranks in zip(cells, found, strict=True)
    }


def _spot(name: str, strategy: str, parameters: int, planned: int | None, cell: Measurement | None) -> Spot:
    if cell is None:
        return Spot(name, parameters, strategy, None, NOT_BEGUN, planned)
    step = cell.step_seconds
    return Spot(
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
    """Every device that is opened meanwhile."""
    before = os.environ.get(MEMORY_LIMIT)
    os.environ[MEMORY_LIMIT] = str(limit_GB)
    try:
        yield
    finally:
        if before is None:
            del os.environ[MEMORY_LIMIT]
        else:
            os.environ[MEMORY_LIMIT] = before


def _kind(asked: str) -> str:
    """One GPU is cut into slices, two or more are taken as they are."""
    if asked != "auto":
        return asked
    gpus = torch.cuda.device_count()
    if gpus >= DEVICES:
        return "cuda"
    return "slice" if gpus and shutil.which("nvidia-cuda-mps-control") else "cpu"


def _row(name: str, ran: dict[str, Ran]) -> list[str]:
    here, survey = ran[name], SURVEY_EPOCH_SECONDS.get(name)
    working = " / ".join(f"{here.computing(rank):.0%}" for rank in range(len(here.ranks)))
    return [
        name,
        f"{survey:g} s, {survey_speedup(name):.2f}x" if survey else "-",
        f"{seconds_text(here.epoch_seconds)}, {speedup(ran, name):.2f}x",
        working,
        bytes_text(here.planned_bytes) if here.planned_bytes else "-",
        bytes_text(here.measured_bytes) if here.measured_bytes else "-",
    ]
