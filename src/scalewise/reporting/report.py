"""`scalewise report`: page, findings and figures of a folder of measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from scalewise.core.errors import UserError
from scalewise.core.files import check_writable, make_out_folder
from scalewise.core.units import seconds_text
from scalewise.formats.store import MEASUREMENTS_FILE, Environment, Measurement, Store
from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.epoch_laws import bounce, inverse_batch_law, loading_floor, saturation
from scalewise.reporting.exporters import Exports
from scalewise.reporting.figure_style import file_name, save
from scalewise.reporting.figures import draw_bars, draw_epochs, draw_scaling, draw_speedups
from scalewise.reporting.finding import ExperimentResult, Finding, devices_text, listed, write_markdown
from scalewise.reporting.html_page import FILE_NAME, write_page
from scalewise.reporting.page_cells import WorkloadOutline, predict_cells
from scalewise.reporting.page_json import Page, page_of_experiment, page_of_measurements, with_cells
from scalewise.reporting.series import Cell, Series, place_key, series_of, series_strategy
from scalewise.reporting.speedups import Speedup, best_speedups, chokes, equality, speedups
from scalewise.reporting.step_figures import draw_phases, draw_transfer, traffic, transfer_fit


def findings_of(series: Series) -> list[Finding]:
    """Return the findings of a series: speed-ups first, then their explanations."""
    candidates: list[Finding | None] = [
        chokes(series),
        best_speedups(series),
        equality(series),
        inverse_batch_law(series),
        loading_floor(series),
        bounce(series),
        saturation(series),
        traffic(series),
        transfer_fit(series),
    ]
    return [finding for finding in candidates if finding is not None]


NO_LINE = "Too few timed steps to fit a line."


def draw_all(series: Sequence[Series], folder: Path) -> list[Path]:
    """Write every figure that the cells of each series allow as PNG and SVG; return the paths."""
    paths: list[Path] = []
    for one_series in series:
        for name, figure in _figures(one_series).items():
            if figure:
                paths += save(figure, folder, file_name(name, one_series.workload, one_series.strategy))
    return paths


def draw_all_phases(series: Sequence[Series], folder: Path) -> list[Path]:
    """Write a figure of step phases per workload, with all strategies that may be compared; return the paths."""
    paths: list[Path] = []
    for workload, kin in dict.fromkeys((member.workload, member.kin) for member in series):
        figure = draw_phases([member for member in series if (member.workload, member.kin) == (workload, kin)])
        if figure:
            paths += save(figure, folder, file_name("phases", workload, kin))
    return paths


def _figures(series: Series) -> dict[str, Figure | None]:
    """Draw the figures of a series by name, with the headline of a finding as subtitle."""
    slower, best, fit = chokes(series), best_speedups(series), transfer_fit(series)
    return {
        "epochs": draw_epochs(series, _subtitle(slower) if slower else ""),
        "bars": draw_bars(series),
        "speedups": draw_speedups(series, _subtitle(best) if best else ""),
        "scaling": draw_scaling(series),
        "transfer": draw_transfer(series, _subtitle(fit) if fit else NO_LINE),
    }


def _subtitle(finding: Finding) -> str:
    return finding.headline[:1].upper() + finding.headline[1:]


PAGE = "findings.md"
ROUGH = 0.1
"""Relative uncertainty of a timing from which the report warns the reader."""
COLUMNS = ["workload", "strategy", "devices", "fastest epoch", "at batch", "speedup, all batches"]


def report(
    *folders: Path | str,
    out: Path | str | None = None,
    published: bool = False,
    outline: WorkloadOutline | None = None,
    exports: Exports | None = None,
) -> ExperimentResult:
    """Write `report.html` and `findings.md` on the measurements in one or more folders, and draw figures.

    Measurements of several folders are read together; if a cell was measured twice on the same machine, the later
    measurement counts.

    Args:
        folders: Folders that `scalewise measure` wrote.
        out: Folder for the files; by default the first folder.
        published: Include the 96 published cells of the study. They can also be reported alone, then `out` is required.
        outline: Function (workload, input shape, classes) that returns the sizes of a workload as a profile. Cells of
            one's own are predicted with it; without it, the page has predictions of published cells only.
        exports: Further files with the numbers of the cells, such as `Exports(csv=Path("cells.csv"))`.

    Returns:
        An `ExperimentResult`, which prints as findings: `findings`, `figures` (paths), `rows`.

    Examples:
        >>> report = scalewise.report(published=True, out="study")
        >>> len(report.figures) > 10
        True
    """
    exports = exports or Exports()
    exports.check()
    if not folders and not published:
        raise UserError("no measurements given; name a folder with measurements: scalewise report DIR")
    if not folders and out is None:
        raise UserError("--published needs a folder for its figures; add --out: scalewise report --published --out DIR")
    study = ["the study's published cells"] if published else []
    sources = " and ".join([*map(str, folders), *study])
    folder = Path(folders[0] if out is None else out)
    environments, measurements = _read(folders, published)
    if not measurements:
        raise UserError(f"no cells in {sources}; measure with scalewise measure, or name another folder")
    make_out_folder(folder)
    markdown, html = folder / PAGE, folder / FILE_NAME
    for path in (markdown, html):
        check_writable(path)
    series = series_of(measurements, environments)
    findings = {one_series.name: findings_of(one_series) for one_series in series}
    figures = draw_all(series, folder) + draw_all_phases(series, folder)
    remarks = remarks_on(measurements)
    title = f"Report on {listed([*(Path(path).name for path in folders), *study])}"
    write_markdown(markdown, page_of(title, series, findings, figures, remarks))
    all_findings = [finding for of_series in findings.values() for finding in of_series]
    document = _page(title, measurements, environments, all_findings, outline)
    write_page(html, document)
    return ExperimentResult(
        f"report on {sources}",
        [str(finding) for finding in all_findings if finding.notable] + remarks,
        COLUMNS,
        table_of(series),
        figures,
        [html, markdown, *exports.write(document)],
        data={"measurements": len(measurements), "all_findings": [finding.to_json() for finding in all_findings]},
    )


def with_page(result: ExperimentResult, folder: Path, outline: WorkloadOutline | None = None) -> ExperimentResult:
    """Write the page of an experiment of `scalewise reproduce`; return the result with the path of the page.

    The page shows the cells that the experiment measured, if it has any; otherwise its table and figures.
    """
    document = page_of_experiment(result.to_json(), result.columns, result.rows)
    figures: Sequence[Path] = result.figures
    if (folder / MEASUREMENTS_FILE).is_file():
        document, figures = with_cells(document, page_of_folders([folder], outline=outline)), ()
    page = write_page(folder / FILE_NAME, document, figures)
    return replace(result, files=[page, *result.files])


def page_of_folders(folders: Sequence[Path | str], outline: WorkloadOutline | None = None) -> Page:
    """Return the page of the measurements in folders."""
    environments, measurements = _read(folders, published=False)
    findings = [finding for one in series_of(measurements, environments) for finding in findings_of(one)]
    title = f"Report on {listed([Path(folder).name for folder in folders])}"
    return _page(title, measurements, environments, findings, outline)


def _page(
    title: str,
    measurements: Sequence[Measurement],
    environments: Mapping[str, Environment],
    findings: Sequence[Finding],
    outline: WorkloadOutline | None,
) -> Page:
    predictions, notes = predict_cells(measurements, environments, outline)
    remarks = remarks_on(measurements)
    return page_of_measurements(title, measurements, environments, predictions, findings, remarks, notes)


def _read(folders: Sequence[Path | str], published: bool) -> tuple[dict[str, Environment], list[Measurement]]:
    environments, measurements = Store.environments(*folders), Store.read(*folders)
    if published:
        study_environment = stevens_environment()
        environments[study_environment.id] = study_environment
        measurements += stevens_measurements()
    return environments, _latest(measurements, environments)


def _latest(measurements: Sequence[Measurement], environments: Mapping[str, Environment]) -> list[Measurement]:
    """Keep only the latest measurement of each cell on each machine, also across reboots."""
    keys = [(measurement.identity, place_key(measurement, environments)) for measurement in measurements]
    latest = dict(sorted(zip(keys, measurements, strict=True), key=lambda pair: pair[1].started))
    return [measurement for key, measurement in zip(keys, measurements, strict=True) if latest[key] is measurement]


def table_of(series: Sequence[Series]) -> list[list[str]]:
    """Return a row per strategy and device count; a baseline that several strategies share appears once."""
    rows = [row for one_series in series for row in _rows(one_series)]
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


def _rows(series: Series) -> list[list[str]]:
    all_speedups = speedups(series)
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in sorted(series.cells, key=lambda cell: (cell.devices, cell.batch)):
        groups.setdefault((cell.devices, _strategy_of(cell, series)), []).append(cell)
    rows = []
    for (devices, strategy), cells in groups.items():
        fastest = min(cells, key=lambda cell: cell.epoch_seconds)
        ratios = [speedup for speedup in all_speedups if speedup.devices == devices]
        epoch = seconds_text(fastest.epoch_seconds)
        rows.append([series.workload, strategy, str(devices), epoch, str(fastest.batch), _range(ratios)])
    return rows


def _strategy_of(cell: Cell, series: Series) -> str:
    """Return the strategy of the series, or the cell's own if it differs: on one device it is often `single`."""
    if cell.strategy in ("", series.strategy.partition(", ")[0]):
        return series.strategy
    return ", ".join(filter(None, [cell.strategy, series.kin]))


def _range(ratios: Sequence[Speedup]) -> str:
    """Format the speed-ups over the batches: '0.11x to 0.54x'. Uncertain speed-ups are marked."""
    if not ratios:
        return "-"
    ordered = sorted(ratios, key=lambda ratio: ratio.speedup)
    ends = [
        f"{ratio.speedup:.2f}x{'' if ratio.slower or ratio.faster else ' (uncertain)'}"
        for ratio in (ordered[0], ordered[-1])
    ]
    return " to ".join(dict.fromkeys(ends))


def remarks_on(measurements: Sequence[Measurement]) -> list[str]:
    """List the limitations of the figures: cells without a time, and flagged cells."""
    without_time: dict[tuple[str, str | None], list[Measurement]] = {}
    for measurement in measurements:
        if measurement.status != "ok":
            without_time.setdefault((measurement.status, measurement.reason), []).append(measurement)
    remarks = [
        f"not measured ({status}): {_cells_text(cells)}: {reason}" for (status, reason), cells in without_time.items()
    ]
    flags = Counter(flag for measurement in measurements for flag in measurement.flags)
    return remarks + [f"{count} of {len(measurements)} cells are flagged '{flag}'" for flag, count in flags.items()]


def _cells_text(cells: Sequence[Measurement]) -> str:
    """Name one cell ('linear, mirrored on 2 devices at batch 10') or count several ('3 cells of conv and linear')."""
    if len(cells) == 1:
        [cell] = cells
        return f"{cell.workload}, {series_strategy(cell)} on {devices_text([cell.devices])} at batch {cell.batch}"
    workloads = sorted({cell.workload for cell in cells})
    return f"{len(cells)} cells of {listed(workloads) if len(workloads) <= 3 else f'{len(workloads)} workloads'}"


def page_of(
    title: str,
    series: Sequence[Series],
    findings: dict[str, list[Finding]],
    figures: Sequence[Path],
    remarks: Sequence[str],
) -> str:
    """Write the Markdown page: the table, then the findings and figures of every series."""
    lines = [f"# {title}", "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row)} |" for row in table_of(series)]
    lines.append("")
    for one_series in series:
        source = f"{one_series.machine}, {one_series.when}.{_uncertainty_warning(one_series)}"
        lines += [f"## {one_series.workload}, {one_series.strategy}", "", source, ""]
        sentences = [f"- {finding.sentence}" for finding in findings[one_series.name]]
        lines += sentences or [_no_findings_reason(one_series)]
        lines.append("")
        lines += _images(figures, file_name(one_series.workload, one_series.strategy))
    for workload, kin in dict.fromkeys((member.workload, member.kin) for member in series):
        if images := _images(figures, file_name(workload, kin)):
            lines += [f"## {workload}{f', {kin}' if kin else ''}: time per step by phase", "", *images]
    if remarks:
        lines += ["## Limitations", "", *(f"- {remark}" for remark in remarks), ""]
    return "\n".join(lines)


def _uncertainty_warning(series: Series) -> str:
    """Return a sentence if some timings of the series are uncertain by more than `ROUGH`, else an empty string."""
    uncertainty = max(cell.uncertainty for cell in series.cells)
    if uncertainty < ROUGH:
        return ""
    if math.isinf(uncertainty):
        return " Some cells were timed only once; their uncertainty is unknown."
    return f" Some timings are uncertain by ± {uncertainty:.0%}; so are the numbers below."


def _no_findings_reason(series: Series) -> str:
    """Say why a section has no findings."""
    batches = f"batch{'es' if len(series.batches) > 1 else ''} {listed(series.batches)}"
    cells = f"{devices_text(series.device_counts)} at {batches}"
    return f"Timed only on {cells}: no pair of one and several devices to compare, too few batch sizes to fit a line."


def _images(figures: Sequence[Path], subject: str) -> list[str]:
    """Return Markdown for the PNG files whose name is a kind of figure, a dash and the subject."""
    paths = [path for path in figures if path.suffix == ".png" and path.stem.partition("-")[2] == subject]
    return [line for path in paths for line in (f"![{path.stem}]({path.name})", "")]
