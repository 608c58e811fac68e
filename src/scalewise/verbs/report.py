"""`scalewise report`: the figures and the findings of a folder of measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalewise.atomic import check_writable, make_out_folder, write_atomically
from scalewise.errors import UserError
from scalewise.figures.gallery import draw_all, draw_all_phases
from scalewise.figures.style import file_name
from scalewise.findings.cell import Cell, Series
from scalewise.findings.collect import findings_of
from scalewise.findings.finding import Finding, devices_text, listed
from scalewise.findings.series import place_key, series_of, strategy_text
from scalewise.findings.speedup import Speedup, speedups
from scalewise.published.measured import stevens_environment, stevens_measurements
from scalewise.results.environment import Environment
from scalewise.results.experiment import ExperimentResult
from scalewise.results.measurement import Measurement
from scalewise.results.store import Store
from scalewise.results.units import seconds_text

PAGE = "findings.md"
ROUGH = 0.1
"""Half an interval, as part of its middle, from which the reader is warned."""
COLUMNS = ["workload", "strategy", "devices", "fastest epoch", "at batch", "speed-up"]


def report(*folders: Path | str, out: Path | str | None = None, published: bool = False) -> ExperimentResult:
    """Draw all that the measurements in a folder show, and write `findings.md` beside them, or into `out`.

    Runs of several folders are read together: of a cell that was measured twice at one place the later counts.
    `published`: the study's 96 cells are read with them, or, into `out`, alone.

    >>> print(scalewise.report("sweep"))
    """
    if not folders and not published:
        raise UserError("there is nothing to report on; name a folder with measurements: scalewise report DIR")
    if not folders and out is None:
        raise UserError("--published needs a folder for its figures; name one: scalewise report --published --out DIR")
    study = ["the study's published cells"] if published else []
    named = " and ".join([*map(str, folders), *study])
    folder = Path(folders[0] if out is None else out)
    environments, measurements = _read(folders, published)
    series = series_of(measurements, environments)
    if not series:
        states = Counter(each.status for each in measurements)
        counted = ", ".join(f"{count} {status}" for status, count in states.items()) or "none at all"
        raise UserError(f"no timed cells in {named} to report on; its measurements: {counted}")
    make_out_folder(folder)
    page = folder / PAGE
    check_writable(page)
    found = {each.name: findings_of(each) for each in series}
    figures = draw_all(series, folder) + draw_all_phases(series, folder)
    remarks = remarks_on(measurements)
    titles = [*(Path(each).name for each in folders), *study]
    write_atomically(page, page_of(f"Report of {listed(titles)}", series, found, figures, remarks).encode())
    return ExperimentResult(
        f"report of {named}",
        [str(finding) for findings in found.values() for finding in findings if finding.telling] + remarks,
        COLUMNS,
        table_of(series),
        figures,
        [page],
        data={"measurements": len(measurements), "all_findings": [f.to_json() for fs in found.values() for f in fs]},
    )


def _read(folders: Sequence[Path | str], published: bool) -> tuple[dict[str, Environment], list[Measurement]]:
    environments, measurements = Store.environments(*folders), Store.read(*folders)
    if published:
        studied = stevens_environment()
        environments[studied.id] = studied
        measurements += stevens_measurements()
    return environments, _latest(measurements, environments)


def _latest(measurements: Sequence[Measurement], environments: Mapping[str, Environment]) -> list[Measurement]:
    """Each cell of each place once, also where its machine was started anew in between."""
    places = [(each.identity, place_key(each, environments)) for each in measurements]
    latest = dict(sorted(zip(places, measurements, strict=True), key=lambda pair: pair[1].started))
    return [each for place, each in zip(places, measurements, strict=True) if latest[place] is each]


def table_of(series: Sequence[Series]) -> list[list[str]]:
    """A row per strategy and device count; what several strategies are compared with is there once."""
    rows = [row for each in series for row in _rows(each)]
    return [row for place, row in enumerate(rows) if row not in rows[:place]]


def _rows(series: Series) -> list[list[str]]:
    every = speedups(series)
    lines: dict[tuple[int, str], list[Cell]] = {}
    for cell in sorted(series.cells, key=lambda cell: (cell.devices, cell.batch)):
        lines.setdefault((cell.devices, _strategy_of(cell, series)), []).append(cell)
    rows = []
    for (devices, strategy), cells in lines.items():
        fastest = min(cells, key=lambda cell: cell.epoch_seconds)
        ratios = [speedup for speedup in every if speedup.devices == devices]
        epoch = seconds_text(fastest.epoch_seconds)
        rows.append([series.workload, strategy, str(devices), epoch, str(fastest.batch), _range(ratios)])
    return rows


def _strategy_of(cell: Cell, series: Series) -> str:
    """As the series is named, unless the cell is another strategy's: one device is often `single`."""
    if cell.strategy in ("", series.strategy.partition(", ")[0]):
        return series.strategy
    return ", ".join(filter(None, [cell.strategy, series.kin]))


def _range(ratios: Sequence[Speedup]) -> str:
    """'0.11x to 0.54x', over the batches; with a ? where noise leaves open whether that is a gain or a loss."""
    if not ratios:
        return "-"
    ordered = sorted(ratios, key=lambda each: each.speedup)
    ends = [f"{each.speedup:.2f}x{'' if each.slower or each.faster else ' ?'}" for each in (ordered[0], ordered[-1])]
    return " to ".join(dict.fromkeys(ends))


def remarks_on(measurements: Sequence[Measurement]) -> list[str]:
    """What the reader must know to trust the figures: cells that brought no time, and flags on those that did."""
    without_time: dict[tuple[str, str | None], list[Measurement]] = {}
    for each in measurements:
        if each.status != "ok":
            without_time.setdefault((each.status, each.reason), []).append(each)
    remarks = [f"{_cells(alike)} {status}: {reason}" for (status, reason), alike in without_time.items()]
    flags = Counter(flag for each in measurements for flag in each.flags)
    return remarks + [f"{count} of {len(measurements)} cells are flagged '{flag}'" for flag, count in flags.items()]


def _cells(alike: Sequence[Measurement]) -> str:
    """'linear, mirrored on 2 at batch 10 is', or '3 cells of conv and linear are' of several."""
    if len(alike) == 1:
        [each] = alike
        return f"{each.workload}, {strategy_text(each)} on {each.devices} at batch {each.batch} is"
    workloads = sorted({each.workload for each in alike})
    return f"{len(alike)} cells of {listed(workloads) if len(workloads) <= 3 else f'{len(workloads)} workloads'} are"


def page_of(
    title: str,
    series: Sequence[Series],
    found: dict[str, list[Finding]],
    figures: Sequence[Path],
    remarks: Sequence[str],
) -> str:
    """Markdown: the table, then every series with all that was found and its figures."""
    lines = [f"# {title}", "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row)} |" for row in table_of(series)]
    lines.append("")
    for each in series:
        where = f"{each.machine}, {each.when}.{_how_rough(each)}"
        lines += [f"## {each.workload} under {each.strategy}", "", where, ""]
        lines += [f"- {finding.sentence}" for finding in found[each.name]] or [_nothing_to_compare(each)]
        lines.append("")
        lines += _images(figures, file_name(each.workload, each.strategy))
    for workload, kin in dict.fromkeys((each.workload, each.kin) for each in series):
        if images := _images(figures, file_name(workload, kin)):
            lines += [f"## {workload}{f', {kin}' if kin else ''}: where a step's seconds go", "", *images]
    if remarks:
        lines += ["## To bear in mind", "", *(f"- {remark}" for remark in remarks), ""]
    return "\n".join(lines)


def _how_rough(series: Series) -> str:
    """Before sentences that tell what the cells say, as if they were exact."""
    noise = max(cell.uncertainty for cell in series.cells)
    if noise < ROUGH:
        return ""
    known = "Some cells were timed once" if math.isinf(noise) else f"Timings are good to ± {noise:.0%} only"
    return f" {known}: what follows holds no better than that."


def _nothing_to_compare(series: Series) -> str:
    """Why a section has no findings."""
    batches = f"batch{'es' if len(series.batches) > 1 else ''} {listed(series.batches)}"
    where = f"{devices_text(series.device_counts)} at {batches}"
    return f"Timed on {where} only: nothing to compare with one device, and too few batches for a law."


def _images(figures: Sequence[Path], of: str) -> list[str]:
    """A figure's name is its kind, a dash, and what it is of."""
    shown = [path for path in figures if path.suffix == ".png" and path.stem.partition("-")[2] == of]
    return [line for path in shown for line in (f"![{path.stem}]({path.name})", "")]
