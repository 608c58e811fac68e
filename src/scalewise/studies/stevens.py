"""Reproduction of the 2020 study on this machine: experiment, findings and figure."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import perf_counter

import torch
from matplotlib.lines import Line2D

from scalewise.core.errors import RunFailed
from scalewise.core.files import write_atomically
from scalewise.data.dataset import DataRequest
from scalewise.data.speech import find_speech
from scalewise.formats.store import Store
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.published.tables import STEVENS
from scalewise.reporting.epoch_laws import SMALLEST_JUMP, WORTHWHILE, bounce, inverse_batch_law, saturation
from scalewise.reporting.figure_style import FAINT, batch_axis, device_look, new_figure, save, styled, whiskers
from scalewise.reporting.finding import ExperimentResult, devices_text, listed, write_markdown
from scalewise.reporting.report import COLUMNS, draw_all, draw_all_phases, findings_of, page_of, remarks_on, table_of
from scalewise.reporting.series import Series, series_of
from scalewise.reporting.speedups import Chokes, Speedup, best_speedups, chokes, equality, speedups
from scalewise.reporting.step_figures import transfer_fit
from scalewise.sweep.environment import cores_in_use, load_remarks, not_begun_remarks, roughness
from scalewise.sweep.measure import measure
from scalewise.sweep.result import cell_line
from scalewise.sweep.sweep import Progress

LAW_MARGIN = 0.1
"""Largest relative uncertainty of timings that can refute a fit."""
VARIATIONS = 100
"""Number of resampled series in which an uncertain claim is checked."""
SURE = 0.95
"""Share of resampled series in which a claim must hold to be certain."""
FEW_SAMPLES = 20
"""Batch per device up to which saturation counts as early. In the study conv saturates at 10 to 13, linear at 125 to
400."""


@dataclass(frozen=True)
class Claim:
    """A finding of a document and whether it holds on this machine."""

    statement: str
    published: str
    """The published result in words."""
    here: str
    """The result on this machine in words."""
    holds: bool | None
    """None if the measurements leave it uncertain."""

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "uncertain"}[self.holds]

    @property
    def sentence(self) -> str:
        return f"{self.statement}: {self.verdict} here ({self.here}); published: {self.published}"


Judge = Callable[[Series], tuple[str, bool | None]]
"""Function that returns the result in words and whether the claim holds in a series."""


def claims(here: Mapping[str, Series], published: Mapping[str, Series]) -> list[Claim]:
    """Check the study's claims; the arguments map workloads to their series under the study's strategy."""
    checked = []
    for statement, workload, judge in CLAIMS:
        words, holds = judge(here[workload]) if workload in here else ("not measured", None)
        checked.append(Claim(statement, judge(published[workload])[0], words, holds))
    return checked


def _never_gains(series: Series) -> tuple[str, bool | None]:
    finding = chokes(series)
    if finding is None:
        return "measured on one device only", None
    if finding.gaining:
        return finding.sentence, False
    return finding.sentence, None if finding.undecided or not finding.choking else True


def _follows_the_law(series: Series) -> tuple[str, bool | None]:
    finding = inverse_batch_law(series)
    if finding is None:
        return "fewer than three batches measured", None

    def holds(cells: Series) -> bool:
        law = inverse_batch_law(cells)
        return law is not None and len(law.holding) == len(law.fits)

    return _with_uncertainty(finding.sentence, series, holds, LAW_MARGIN)


def _equal(series: Series) -> tuple[str, bool | None]:
    finding = equality(series)
    if finding is None:
        return f"measured on {devices_text(series.device_counts)} only", None
    return finding.sentence, True if finding.equal else False if finding.different else None


def _follows_the_bytes(series: Series) -> tuple[str, bool | None]:
    finding = transfer_fit(series)
    if finding is None:
        return "fewer than three different amounts of bytes measured", None

    def holds(cells: Series) -> bool:
        fit = transfer_fit(cells)
        return fit is not None and fit.governs

    return _with_uncertainty(finding.sentence, series, holds, LAW_MARGIN)


def _gains(series: Series) -> tuple[str, bool | None]:
    best, all_speedups = best_speedups(series), speedups(series)
    if best is None:
        return "measured on one device only", None
    if {speedup.devices for speedup in all_speedups} == {speedup.devices for speedup in all_speedups if speedup.faster}:
        return best.sentence, True
    return best.sentence, None if any(speedup.speedup > 1 or speedup.undecided for speedup in best.best) else False


def _gains_least_at_the_smallest_batch(series: Series) -> tuple[str, bool | None]:
    all_speedups = speedups(series)
    if len({speedup.batch for speedup in all_speedups}) < 2:
        return "fewer than two batches measured", None
    smallest = min(speedup.batch for speedup in all_speedups)
    at_smallest = [speedup for speedup in all_speedups if speedup.batch == smallest]
    at_larger = [speedup for speedup in all_speedups if speedup.batch > smallest]
    least = max(at_smallest, key=lambda speedup: speedup.speedup)
    most = max(at_larger, key=lambda speedup: (speedup.at_least, speedup.speedup))
    uncertainty = math.hypot(least.uncertainty, most.uncertainty)
    certain = abs(most.speedup - least.speedup) > uncertainty * max(most.speedup, least.speedup)
    return (
        f"at most {least.text} at batch {smallest}, up to {most.text} at larger batches",
        least.speedup < most.speedup if certain else None,
    )


def _bounces(series: Series) -> tuple[str, bool | None]:
    finding = bounce(series)
    if finding is None:
        refuted = _false_unless_noisy(series, SMALLEST_JUMP)
        jump = "no jump" if refuted is False else "no certain jump"
        return f"{jump} between batches {series.batches[0]} and {series.batches[-1]}", refuted
    if len(finding.jumps) < 2:
        return f"{finding.sentence}; uncertain, because it was found at one device count only", None
    return finding.sentence, finding.above is not None


def _saturates(series: Series) -> tuple[str, bool | None]:
    finding = saturation(series)
    if finding is None:
        return "fewer than three batches measured", None

    def holds(cells: Series) -> bool:
        points = saturation(cells)
        return points is not None and all(
            point.reached and point.batch_per_device <= FEW_SAMPLES for point in points.points
        )

    return _with_uncertainty(finding.sentence, series, holds, WORTHWHILE)


def _with_uncertainty(
    words: str, series: Series, holds: Callable[[Series], bool], margin: float
) -> tuple[str, bool | None]:
    """Check a claim under the uncertainty of the timings.

    It holds if it also holds in nearly all series resampled from the intervals. It is refuted only if it fails in
    nearly all of them and the uncertainty is within the margin.
    """
    noise = max(cell.uncertainty for cell in series.cells)
    if not noise:
        return words, holds(series)
    share = sum(holds(variation) for variation in _variations(series)) / VARIATIONS
    if holds(series) and share >= SURE:
        return words, True
    if not holds(series) and share <= 1 - SURE and _false_unless_noisy(series, margin) is False:
        return words, False
    reason = "some cells were timed only once" if math.isinf(noise) else f"timings vary by up to ± {noise:.0%}"
    return f"{words}; uncertain: {reason}, and it holds in {share:.0%} of {VARIATIONS} resampled series", None


def _variations(series: Series) -> Iterator[Series]:
    """Yield copies of the series with times drawn from their intervals, with a fixed random seed."""
    random = Random(0)
    for _ in range(VARIATIONS):
        cells = [
            replace(cell, epoch_seconds=cell.epoch_seconds * max(0.1, random.gauss(1, min(1.0, cell.uncertainty) / 2)))
            for cell in series.cells
        ]
        yield replace(series, cells=tuple(cells))


def _false_unless_noisy(series: Series, margin: float) -> bool | None:
    """Return False (refuted), or None (uncertain) if the difference of two timings is uncertain by over the margin."""
    return None if any(2 * cell.uncertainty > margin for cell in series.cells) else False


CLAIMS: tuple[tuple[str, str, Judge], ...] = (
    ("linear never gains from more devices", "linear", _never_gains),
    ("linear's epoch time is a floor plus a constant per step", "linear", _follows_the_law),
    ("linear chokes on the network (its epoch time grows with the bytes sent)", "linear", _follows_the_bytes),
    ("linear takes the same time on 2, 3 and 4 devices", "linear", _equal),
    ("conv gains from more devices", "conv", _gains),
    ("conv gains least at the smallest batch", "conv", _gains_least_at_the_smallest_batch),
    ("conv bounces (time per sample jumps at the same batch per device)", "conv", _bounces),
    ("conv saturates a device with few samples (larger batches do not help)", "conv", _saturates),
)


def headline(here: Mapping[str, Series], checked: Sequence[Claim]) -> str:
    """Summarize the result in one sentence."""
    parts = []
    if "linear" in here and (slower := chokes(here["linear"])):
        parts.append(_linear_result(slower, speedups(here["linear"])))
    if "conv" in here and best_speedups(here["conv"]):
        best = max(speedups(here["conv"]), key=lambda speedup: (speedup.faster, speedup.at_least, speedup.speedup))
        gains = "gains" if best.faster else "may gain" if best.speedup > 1 else "does not gain"
        parts.append(f"conv {gains} ({best.text} on {best.devices} devices at batch {best.batch})")
    result = " and ".join(parts) or "no cell on several devices can be compared with one device yet"
    return f"Found on {next(iter(here.values())).machine}: {result}{_count(checked)}"


def _linear_result(slower: Chokes, all_speedups: Sequence[Speedup]) -> str:
    if not slower.choking:
        return f"linear {'may choke' if slower.undecided else 'does not choke'} ({slower.sentence})"
    worst = slower.choking[0]
    best = max(all_speedups, key=lambda speedup: (speedup.faster, speedup.at_least))
    times = f"{worst.devices} devices take {1 / worst.speedup:.1f} times as long at batch {worst.batch}"
    gain = f", but are {best.text} as fast at batch {best.batch}" if best.faster else ""
    return f"linear chokes ({times}{gain})"


def _count(checked: Sequence[Claim]) -> str:
    """Count the claims that hold: '; of the study's 8 findings, 5 hold here, 1 does not and 2 are uncertain'."""
    if not checked:
        return ""
    holding, refuted, uncertain = (sum(claim.holds is verdict for claim in checked) for verdict in (True, False, None))
    parts = [
        *([f"{holding} hold{'s' if holding == 1 else ''} here"] if holding else []),
        *([f"{refuted} do{'es' if refuted == 1 else ''} not{'' if holding else ' hold here'}"] if refuted else []),
        *([f"{uncertain} {'is' if uncertain == 1 else 'are'} uncertain"] if uncertain else []),
    ]
    return f"; of the study's {len(checked)} findings, {listed(parts)}"


def speedups_by_batch(series: Series) -> dict[int, dict[int, float]]:
    """Map device count -> global batch -> speed-up over one device."""
    by_count: dict[int, dict[int, float]] = {}
    for speedup in speedups(series):
        by_count.setdefault(speedup.devices, {})[speedup.batch] = speedup.speedup
    return by_count


@styled
def draw_comparison(
    here: Mapping[str, Series], published: Mapping[str, Series], subtitle: str, out: Path
) -> list[Path]:
    """Draw a panel per model: solid lines for this machine, dashed lines for the study at the same device counts."""
    workloads = [workload for workload in published if workload in here]
    first = here[workloads[0]]
    figure, panels = new_figure(
        "Speed-up over one device, here and in the study",
        f"{first.machine}, {first.when}; published: {published[workloads[0]].machine}",
        columns=len(workloads),
        width=max(7.6, 4.5 * len(workloads)),
        when=published[workloads[0]].when,
        subtitle=subtitle,
    )
    for axes, workload in zip(panels, workloads, strict=True):
        counts = published[workload].device_counts
        measured, in_study = speedups_by_batch(here[workload]), speedups_by_batch(published[workload])
        for devices, line in measured.items():
            look = device_look(devices, sorted({*counts, *measured}))
            axes.plot(list(line), list(line.values()), **look, zorder=3)
            timed = [speedup for speedup in speedups(here[workload]) if speedup.devices == devices]
            whiskers(axes, [(speedup.batch, speedup.speedup, speedup.uncertainty) for speedup in timed], look["color"])
            if devices in in_study:
                dashed = {"color": look["color"], "linestyle": (0, (4, 2)), "linewidth": 1.2, "alpha": 0.8}
                axes.plot(list(in_study[devices]), list(in_study[devices].values()), **dashed)
        axes.axhline(1, color=FAINT, linewidth=1)
        batch_axis(axes, sorted({*here[workload].batches, *published[workload].batches}), len(workloads))
        lines = [*measured.values(), *(in_study[count] for count in measured if count in in_study)]
        values = [value for line in lines for value in line.values()]
        reach = [
            speedup.speedup * (1 + speedup.uncertainty)
            for speedup in speedups(here[workload])
            if speedup.uncertainty < 1
        ]
        axes.set_ylim(0, 1.08 * max([1.0, *values, *reach]))  # longer whiskers extend beyond the figure
        axes.set_title(workload)
        axes.set_xlabel("global batch size")
        axes.grid(axis="y")
    panels[0].set_ylabel("speed-up over one device")
    handles, labels = panels[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=FAINT, linestyle=(0, (4, 2)), linewidth=1.2, label="published"))
    figure.legend(handles, [*labels, "published, same\nnumber of devices"], loc="outside right upper")
    return save(figure, out, "stevens-comparison")


STUDIED, COMPARED_WITH = "data-parallel", "mirrored"
STRATEGIES = ("single", STUDIED, COMPARED_WITH)
"""Strategies to measure. The study's one-GPU cells use DataParallel with one device, which equals `single`."""
CLIPS = 2_000


@dataclass(frozen=True)
class Grid:
    """Batch sizes and strategies of one model, with time limits."""

    workload: str
    batches: tuple[int, ...]
    strategies: tuple[str, ...] = STRATEGIES
    budget: float = 30.0
    """Seconds per cell."""
    until: float | None = None
    """Seconds after the start of the experiment by which the model must be finished; None without a limit."""


STUDY_BATCHES = (10, 20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 600)
FULL = (Grid("linear", STUDY_BATCHES), Grid("conv", STUDY_BATCHES))
QUICK = (
    Grid("linear", (10, 50, 500), ("single", STUDIED), budget=12.0, until=75.0),
    Grid("conv", (2, 4, 10), ("single", STUDIED), budget=20.0, until=150.0),
)
"""Grids of the quick experiment. Three batches are the fewest that a fit needs, and few enough to time all cells often
in the given time. linear's batches avoid its break-even on two cores, which three minutes cannot resolve. conv's
batches are small because one clip takes 0.1 s on one core."""
INTERVAL_PERCENT, QUICK_INTERVAL_PERCENT = 2.0, 5.0


def run(
    out: Path, quick: bool, log: Callable[[str], None], on_progress: Callable[[Progress], None] | None = None
) -> ExperimentResult:
    """Run the experiment, resuming if the folder has measurements; under three minutes on two cores if `quick`."""
    kind, counts, remark = devices_here(quick)
    used, cores = cores_in_use(), len(allowed_cores())
    remarks = [*([remark] if remark else []), *load_remarks(used, cores)]
    for line in remarks:
        log(line)
    failed, not_begun, began = 0, 0, perf_counter()
    for grid in QUICK if quick else FULL:
        cells = f"{_list(grid.strategies)} on 1 to {counts[-1]} {kind} devices at batch {_list(grid.batches)}"
        log(f"measuring {grid.workload}: {cells}")
        result = measure(
            grid.workload,
            out=out,
            strategy=grid.strategies,
            devices=[count for count in counts if count > 1],
            batch=grid.batches,
            device_kind=kind,
            execution="eager",  # several devices run eagerly, so the baseline must not use a CUDA graph
            interval=QUICK_INTERVAL_PERCENT if quick else INTERVAL_PERCENT,
            budget=grid.budget,
            budget_total=None if grid.until is None else max(1.0, grid.until - (perf_counter() - began)),
            load=_load(),
            samples=_samples(),
            resume=True,
            on_progress=on_progress,
            on_cell=lambda cell: log(f"  {cell_line(cell)}"),
        )
        if result.resumed:
            log(f"  {result.resumed} cells of {grid.workload} are already in {out}; use another --out to measure again")
        failed += len(result.failed)
        not_begun += result.not_begun
    log("drawing ...")
    rough = roughness(used, cores, Store.read(out), not_begun)
    return conclude(out, [*remarks, *not_begun_remarks(not_begun)], failed, rough)


def conclude(out: Path, remarks: Sequence[str] = (), failed: int = 0, rough: str = "") -> ExperimentResult:
    """Draw the figures and compare the measurements in a folder with the study; `rough` is added to the headline."""
    measurements, environments = Store.read(out), Store.environments(out)
    series = series_of(measurements, environments)
    here = {one_series.workload: one_series for one_series in series if one_series.strategy == STUDIED}
    if not here:
        raise RunFailed(f"no cell of {STUDIED} was measured; see the reasons in {out / 'measurements.jsonl'}")
    study = published()
    checked = claims(here, study)
    summary = headline(here, checked) + rough
    figures = draw_comparison(here, study, "Below 1: slower than one device. Whiskers: 95% intervals.", out)
    figures += draw_all(list(here.values()), out) + draw_all_phases(series, out)
    remarks = [*remarks, *remarks_on(measurements)]
    page = out / "findings.md"
    findings = {one_series.name: findings_of(one_series) for one_series in series}
    text = _comparison_page(summary, checked, remarks) + page_of("All measurements", series, findings, figures, [])
    write_markdown(page, text)
    numbers = out / "stevens.json"
    document = {
        "headline": summary,
        "claims": [{**vars(claim), "verdict": claim.verdict} for claim in checked],
        "all_findings": [finding.to_json() for of_series in findings.values() for finding in of_series],
    }
    write_atomically(numbers, json.dumps(document, indent=2).encode())
    return ExperimentResult(
        "stevens",
        [f"{claim.statement}: {claim.verdict} ({claim.here})" for claim in checked] + remarks,
        COLUMNS,
        table_of(series),
        figures,
        [page, numbers],
        document,
        headline=summary,
        failed=failed,
    )


def published() -> dict[str, Series]:
    """Return the study's published series by workload."""
    environment = stevens_environment()
    series = series_of(stevens_measurements(), {environment.id: environment})
    return {one_series.workload: one_series for one_series in series}


def devices_here(quick: bool) -> tuple[str, Sequence[int], str]:
    """Return the device kind, the device counts, and a remark if they end below the study's four devices.

    A single GPU is split into slices. Cores are never shared between devices.
    """
    gpus = torch.cuda.device_count()
    if gpus > 1:
        most = min(4, gpus)
        remark = "" if most == 4 else f"measured on up to {most} devices, because this machine has {gpus} GPUs"
        return "cuda", tuple(range(1, most + 1)), remark
    if gpus and shutil.which("nvidia-cuda-mps-control"):
        return "slice", (1, 2) if quick else (1, 2, 3, 4), ""
    cores = len(allowed_cores())
    most = 2 if quick else max(2, min(4, cores))
    counts = tuple(range(1, most + 1))
    remark = f"measured on up to {most} devices, because this machine has {cores} core{'' if cores == 1 else 's'}"
    return "cpu", counts, "" if quick or most == 4 else remark


def _load() -> str:
    """Load every clip from its file in every epoch, as the study did, if the data set is available."""
    return "files" if find_speech(DataRequest()) else "auto"


def _samples() -> int | None:
    return CLIPS if find_speech(DataRequest()) else None


def _comparison_page(summary: str, checked: Sequence[Claim], remarks: Sequence[str]) -> str:
    """Write the first part of the page: the findings of the study, and whether they hold here."""
    lines = ["# The study on this machine", "", f"{summary}.", "", f"The study: {STEVENS.citation}.", ""]
    lines += ["| finding of the study | verdict here | measured here | published |", "|---|---|---|---|"]
    lines += [f"| {claim.statement} | **{claim.verdict}** | {claim.here} | {claim.published} |" for claim in checked]
    lines += ["", "![stevens-comparison](stevens-comparison.png)", ""]
    lines += [f"- {remark}" for remark in remarks]
    return "\n".join([*lines, "", ""])


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
