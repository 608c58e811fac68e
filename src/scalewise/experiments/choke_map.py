"""The study's future work: synthetic models over the plane of size and compute, and who gains from two devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from scalewise.atomic import write_atomically
from scalewise.errors import RunFailed
from scalewise.experiments.choke_map_figure import draw_map
from scalewise.experiments.choke_map_plane import Spot, beside_the_study, border_pieces, short, words
from scalewise.experiments.remarks import cores_in_use, load_remarks, not_begun_remarks, roughness
from scalewise.findings.cell import Series
from scalewise.findings.machine import when_text
from scalewise.findings.series import series_of
from scalewise.findings.speedup import speedups
from scalewise.measuring.measured import cell_line
from scalewise.results.experiment import ExperimentResult
from scalewise.results.store import Store
from scalewise.session.cores import allowed_cores
from scalewise.spec import parse_spec
from scalewise.verbs.describe import describe
from scalewise.verbs.measure import measure
from scalewise.verbs.report import remarks_on
from scalewise.verbs.sweep import Progress

STRATEGY, DEVICES, BATCH = "mirrored", 2, 8
PARAMETERS = (30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
FLOPS = (300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
QUICK_PARAMETERS = (100_000, 1_000_000, 10_000_000)
QUICK_FLOPS = (1_000_000, 10_000_000, 100_000_000)
KNOWN_MODELS = ("linear", "conv", "unet", "transformer")


def run(
    out: Path, quick: bool, tell: Callable[[str], None], on_progress: Callable[[Progress], None] | None = None
) -> ExperimentResult:
    """About a minute if quick, most of an hour if not. A folder with measurements is gone on with."""
    used, cores = cores_in_use(), len(allowed_cores())
    sizes, computes = (QUICK_PARAMETERS, QUICK_FLOPS) if quick else (PARAMETERS, FLOPS)
    tell(f"{len(sizes) * len(computes)} synthetic models on one device and on two, batch {BATCH} ...")
    result = measure(
        [name_of(parameters, flops) for parameters, flops in product(sizes, computes)],
        out=out,
        strategy=("single", STRATEGY),
        devices=[DEVICES],
        batch=[BATCH],
        execution="eager",  # on a GPU a graph on one device would be compared with eager ranks
        interval=5.0 if quick else 2.0,
        budget=2.0 if quick else 20.0,
        budget_total=80.0 if quick else None,
        resume=True,
        on_progress=on_progress,
        on_cell=lambda cell: tell(f"  {cell_line(cell)}"),
    )
    series = [each for each in series_of(Store.read(out), Store.environments(out)) if place_of(each.workload)]
    spots = spots_of(series)
    if not spots:
        raise RunFailed(f"no model was timed both on one device and on {DEVICES}; see {out / 'measurements.jsonl'}")
    rough = roughness(used, cores, result.measurements, result.not_begun)
    remarks = [*load_remarks(used, cores), *not_begun_remarks(result.not_begun), *remarks_on(result.measurements)]
    when = when_text([each.started for each in result.measurements])
    planned = list(product(sizes, computes))
    return conclude(out, spots, series[0].machine, remarks, len(result.failed), rough, when, planned)


def name_of(parameters: int, flops: int) -> str:
    return f"synthetic:parameters={parameters},flops={flops}"


def place_of(workload: str) -> tuple[int, int] | None:
    """Parameters and flops of a model of the plane; None of any other that the folder holds."""
    spec = parse_spec(workload)
    if spec.name != "synthetic" or not {"parameters", "flops"} <= set(spec.options):
        return None
    return int(spec.options["parameters"]), int(spec.options["flops"])


def spots_of(series: Sequence[Series]) -> list[Spot]:
    """Where each model that was timed both ways lies, and its speed-up."""
    found = []
    for each in series:
        place = place_of(each.workload)
        if place is None or each.strategy != STRATEGY:
            continue
        for speedup in speedups(each):
            if (speedup.devices, speedup.batch) == (DEVICES, BATCH):
                told = speedup.slower or speedup.faster
                found.append(Spot(*place, speedup.speedup, told))
    return sorted(found, key=lambda spot: (spot.parameters, spot.flops))


def conclude(
    out: Path,
    spots: Sequence[Spot],
    machine: str,
    remarks: Sequence[str] = (),
    failed: int = 0,
    rough: str = "",
    when: str | None = None,
    planned: Sequence[tuple[int, int]] = (),
) -> ExperimentResult:
    """The map and what it shows; `rough` ends the verdict, `when` is the day of the measurements, `planned` are all
    places of the map."""
    described = {name: describe(name) for name in KNOWN_MODELS}
    marked = {name: (each.parameters, each.flops_per_sample) for name, each in described.items()}
    found = [*words(spots, BATCH), *beside_the_study(spots, marked, planned)]
    title = f"Who gains from a second device ({STRATEGY}, global batch {BATCH})"
    subtitle = "Tiles: synthetic models (?: too noisy to tell). Stars, arrows: known ones."
    if border_pieces(spots):
        subtitle += " Dashed: no gain, no loss."
    figures = draw_map(spots, marked, title, machine, subtitle, out, when)
    page, numbers = out / "findings.md", out / "choke-map.json"
    computes = sorted({spot.flops for spot in spots})
    result = ExperimentResult(
        "choke-map",
        [*found, *remarks],
        ["parameters", *(f"{short(flops)} flops" for flops in computes)],
        [_row(parameters, computes, spots) for parameters in sorted({spot.parameters for spot in spots})],
        figures,
        [page, numbers],
        {"spots": [asdict(spot) for spot in spots], "known_models": marked, "batch": BATCH, "strategy": STRATEGY},
        headline=f"Found on {machine}: {found[0]}{rough}",
        failed=failed,
    )
    write_atomically(numbers, json.dumps(result.to_json(), indent=2).encode())
    write_atomically(page, result.to_markdown().encode())
    return result


def _row(parameters: int, computes: Sequence[int], spots: Sequence[Spot]) -> list[str]:
    known = {spot.flops: spot for spot in spots if spot.parameters == parameters}
    texts = {flops: f"{spot.speedup:.2f}x{'' if spot.certain else ' ?'}" for flops, spot in known.items()}
    return [short(parameters), *(texts.get(flops, "-") for flops in computes)]
