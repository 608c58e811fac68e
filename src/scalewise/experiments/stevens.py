"""The 2020 study on this machine: both models, one to four devices, twelve batches, and which of its findings hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from scalewise.atomic import write_atomically
from scalewise.data.data import DataRequest
from scalewise.data.speech import find_speech
from scalewise.errors import RunFailed
from scalewise.experiments.remarks import cores_in_use, load_remarks, not_begun_remarks, roughness
from scalewise.experiments.stevens_claims import Claim, claims, headline
from scalewise.experiments.stevens_figure import draw_comparison
from scalewise.figures.gallery import draw_all, draw_all_phases
from scalewise.findings.cell import Series
from scalewise.findings.collect import findings_of
from scalewise.findings.series import series_of
from scalewise.measuring.measured import cell_line
from scalewise.published.measured import stevens_environment, stevens_measurements
from scalewise.published.tables import STEVENS
from scalewise.results.experiment import ExperimentResult
from scalewise.results.store import Store
from scalewise.session.cores import allowed_cores
from scalewise.verbs.measure import measure
from scalewise.verbs.report import COLUMNS, page_of, remarks_on, table_of
from scalewise.verbs.sweep import Progress

STUDIED, CONTRAST = "data-parallel", "mirrored"
STRATEGIES = ("single", STUDIED, CONTRAST)
"""The study's one-GPU cells are DataParallel with one device, which is the bare model."""
CLIPS = 2_000


@dataclass(frozen=True)
class Grid:
    """The cells of one model, and the seconds that each of them may take."""

    workload: str
    batches: tuple[int, ...]
    strategies: tuple[str, ...] = STRATEGIES
    budget: float = 30.0
    until: float | None = None
    """Seconds after the start by which it is to be through: what one model leaves over is the next one's."""


STUDY_BATCHES = (10, 20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 600)
FULL = (Grid("linear", STUDY_BATCHES), Grid("conv", STUDY_BATCHES))
QUICK = (
    Grid("linear", (10, 50, 500), ("single", STUDIED), budget=12.0, until=75.0),
    Grid("conv", (2, 4, 10), ("single", STUDIED), budget=20.0, until=150.0),
)
"""Three batches of each, no fewer than a law needs, so that all cells are under way at once and each is visited often
enough to be sure of. Between linear's smallest and its largest lies the batch from which on two cores may gain: there
three minutes can tell nothing. conv takes a tenth of a second for a clip on one core: its batches are small ones."""
INTERVAL_PERCENT, QUICK_INTERVAL_PERCENT = 2.0, 5.0


def run(
    out: Path, quick: bool, tell: Callable[[str], None], on_progress: Callable[[Progress], None] | None = None
) -> ExperimentResult:
    """Under three minutes if quick, on two cores. A folder with measurements is gone on with."""
    kind, counts, remark = devices_here(quick)
    used, cores = cores_in_use(), len(allowed_cores())
    remarks = [*([remark] if remark else []), *load_remarks(used, cores)]
    for line in remarks:
        tell(line)
    failed, not_begun, began = 0, 0, perf_counter()
    for grid in QUICK if quick else FULL:
        told = f"{_list(grid.strategies)} on 1 to {counts[-1]} {kind} devices at batch {_list(grid.batches)}"
        tell(f"{grid.workload}: {told}")
        result = measure(
            grid.workload,
            out=out,
            strategy=grid.strategies,
            devices=[count for count in counts if count > 1],
            batch=grid.batches,
            device_kind=kind,
            execution="eager",  # as several devices run: a graph on one would be compared with nothing
            interval=QUICK_INTERVAL_PERCENT if quick else INTERVAL_PERCENT,
            budget=grid.budget,
            budget_total=None if grid.until is None else max(1.0, grid.until - (perf_counter() - began)),
            load=_load(),
            samples=_samples(),
            resume=True,
            on_progress=on_progress,
            on_cell=lambda cell: tell(f"  {cell_line(cell)}"),
        )
        if result.resumed:
            tell(f"  {result.resumed} cells of {grid.workload} are in {out} already; another --out measures anew")
        failed += len(result.failed)
        not_begun += result.not_begun
    tell("drawing ...")
    rough = roughness(used, cores, Store.read(out), not_begun)
    return conclude(out, [*remarks, *not_begun_remarks(not_begun)], failed, rough)


def conclude(out: Path, remarks: Sequence[str] = (), failed: int = 0, rough: str = "") -> ExperimentResult:
    """Figures, findings and the comparison with the study, of what a folder holds; `rough` ends the verdict."""
    measurements, environments = Store.read(out), Store.environments(out)
    series = series_of(measurements, environments)
    here = {each.workload: each for each in series if each.strategy == STUDIED}
    if not here:
        raise RunFailed(f"no cell of {STUDIED} came through; see {out / 'measurements.jsonl'}")
    original = published()
    judged = claims(here, original)
    found = headline(here, judged) + rough
    figures = draw_comparison(here, original, "Below 1 more devices slow training down. Whiskers: 95 % intervals.", out)
    figures += draw_all(list(here.values()), out) + draw_all_phases(series, out)
    remarks = [*remarks, *remarks_on(measurements)]
    page = out / "findings.md"
    every = {each.name: findings_of(each) for each in series}
    text = _comparison(found, judged, remarks) + page_of("All that was measured", series, every, figures, [])
    write_atomically(page, text.encode())
    numbers = out / "stevens.json"
    document = {
        "headline": found,
        "claims": [{**vars(claim), "verdict": claim.verdict} for claim in judged],
        "all_findings": [finding.to_json() for findings in every.values() for finding in findings],
    }
    write_atomically(numbers, json.dumps(document, indent=2).encode())
    return ExperimentResult(
        "stevens",
        [f"{claim.statement}: {claim.verdict} ({claim.here})" for claim in judged] + remarks,
        COLUMNS,
        table_of(series),
        figures,
        [page, numbers],
        document,
        headline=found,
        failed=failed,
    )


def published() -> dict[str, Series]:
    environment = stevens_environment()
    return {each.workload: each for each in series_of(stevens_measurements(), {environment.id: environment})}


def devices_here(quick: bool) -> tuple[str, Sequence[int], str]:
    """The kind of device, how many, and a remark where that is fewer than the study's four.

    One GPU is cut into slices. A core that several devices shared would say nothing about several devices.
    """
    gpus = torch.cuda.device_count()
    if gpus > 1:
        most = min(4, gpus)
        left_out = "" if most == 4 else f"devices above {most} are left out: there are {gpus} GPUs"
        return "cuda", tuple(range(1, most + 1)), left_out
    if gpus and shutil.which("nvidia-cuda-mps-control"):
        return "slice", (1, 2) if quick else (1, 2, 3, 4), ""
    cores = len(allowed_cores())
    most = 2 if quick else max(2, min(4, cores))
    counts = tuple(range(1, most + 1))
    return "cpu", counts, "" if quick or most == 4 else f"devices above {most} are left out: there are {cores} cores"


def _load() -> str:
    """As the study did: every clip from its file in every epoch, where there are files."""
    return "files" if find_speech(DataRequest()) else "auto"


def _samples() -> int | None:
    return CLIPS if find_speech(DataRequest()) else None


def _comparison(found: str, judged: Sequence[Claim], remarks: Sequence[str]) -> str:
    """The page's first part: what the study found, and whether it holds here."""
    lines = ["# The study on this machine", "", f"{found}.", "", f"The study: {STEVENS.citation}.", ""]
    lines += ["| the study found | here | measured here | published |", "|---|---|---|---|"]
    lines += [f"| {claim.statement} | **{claim.verdict}** | {claim.here} | {claim.published} |" for claim in judged]
    lines += ["", "![stevens-comparison](stevens-comparison.png)", ""]
    lines += [f"- {remark}" for remark in remarks]
    return "\n".join([*lines, "", ""])


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
