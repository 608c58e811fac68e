"""Document of the page: everything that it shows, as JSON, from the documents of `measure`, `advise` and `tune`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from statistics import median
from typing import Any

from scalewise import __version__
from scalewise.core.timeline import BETWEEN_DEVICES, PHASES
from scalewise.core.units import seconds_text
from scalewise.formats.store import Environment, Measurement
from scalewise.reporting.finding import Finding, listed, machine_text
from scalewise.reporting.page_cells import Cell, Predictions, advised_cells, as_table, measured_cells, rounded

LEAST_GAIN = 1.02
"""Smallest speed-up that counts as faster."""
ROUGH, VAGUE = 0.1, 0.5
"""Relative uncertainty of a speed-up from which the verdict gives its interval, and from which it leaves it open."""
NAMED_WORKLOADS = 3
"""Largest number of workloads that the verdict names one by one."""

MOST_RECORDED_BYTES = 700_000
"""Room for recorded steps in a page; cells after that show their phases only."""

Page = dict[str, Any]
"""Document of a page. Its keys are the sections; a section without data is missing."""


def page_of_measurements(
    title: str,
    measurements: Sequence[Measurement],
    environments: Mapping[str, Environment],
    predictions: Predictions | None = None,
    findings: Sequence[Finding] = (),
    remarks: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Page:
    """Return the page of measured cells, with their predictions beside them."""
    cells = measured_cells(measurements, environments, predictions or {})
    page = _page(title, cells) | {
        "verdict": verdict_of_cells(cells),
        "findings": [
            {"text": finding.sentence, "about": finding.series, "notable": finding.notable} for finding in findings
        ],
        "limitations": list(remarks),
        "notes": list(notes),
        "environments": _environments(measurements, environments),
    }
    if accuracy := accuracy_of(cells):
        page["accuracy"] = accuracy
    return page


def page_of_advice(advice: Mapping[str, Any], pictures: Mapping[int, Mapping[str, Any]] | None = None) -> Page:
    """Return the page of an `advise` document. `pictures`: `step_picture` of rows, by number of the row."""
    cells = advised_cells(advice)
    for number, picture in (pictures or {}).items():
        cells[number]["detail"] = picture
    verdict = advice["verdict"]
    changes = verdict.get("changes", [])
    [best] = advised_cells({**advice, "rows": [verdict["best"]]})
    page = _page(f"Advice for {advice['workload']}", cells) | {
        "verdict": _verdict_of_advice(verdict),
        "changes": [{"text": change["change"], "speedup": change.get("speedup")} for change in changes],
        "notes": [f"Predicted from {advice['profile']['source']}."],
        "best": {name: best[name] for name in ("strategy", "devices", "batch")},
        "environments": [{"machine": advice["cluster"], "entries": _advice_entries(advice)}],
    }
    if comparison := advice.get("comparison"):
        page["comparison"] = [_compared(advice["workload"], entry) for entry in comparison]
        page["recommended"] = verdict.get("recommended")
        page["cluster"] = advice["cluster"]
        page["verdict"] |= _verdict_of_comparison(page["comparison"], verdict, advice["cluster"])
    return page


def page_of_tuning(tune: Mapping[str, Any]) -> Page:
    """Return the page of a `tune` document."""
    trials = [{**trial, "label": trial.get("label") or options_text(trial["options"])} for trial in tune["trials"]]
    number = _best_trial(tune)
    versions = {f"{name} version": str(version) for name, version in (tune.get("versions") or {}).items()}
    entries = {name: str(tune[name]) for name in ("data", "precision") if tune.get(name)}
    if measured_at := tune.get("measured_at"):
        entries["measured"] = time_text(measured_at)
    device = tune["device"] if tune["device"].startswith("one ") else f"one {tune['device']}"
    page = _page(f"Tuning of {tune['workload']}", []) | {
        "tuning": rounded({**tune, "trials": trials, "best": number, "device": device}),
        "notes": list(tune.get("notes") or []),
        "notes_heading": "Notes",
        "environments": [{"machine": tune["device"], "entries": {**entries, **versions}}],
    }
    timed = [trial for trial in trials if trial.get("step_seconds")]
    if len(timed) == 1:
        sentence = f"Only {timed[0]['label']} was timed, so there is nothing to compare it with."
        page["verdict"] = {"sentence": sentence, "tone": "open"}
    elif number is not None and trials[0] in timed and trials[number] in timed:
        best = trials[number]
        gain = best.get("speedup") or trials[0]["step_seconds"]["median"] / best["step_seconds"]["median"]
        faster = f"With {best['label']}, {device} trains {tune['workload']} {gain:.2f}x as fast as in plain eager mode."
        page["verdict"] = {
            "figure": f"{gain:.2f}x",
            "caption": "over plain eager mode",
            "tone": _tone(gain),
            "sentence": faster if gain > LEAST_GAIN else "Plain eager mode is as fast as every other option tried.",
        }
    return page


def page_of_experiment(result: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Page:
    """Return the page of an experiment of `reproduce` that has no cells of a grid."""
    headline = result.get("headline") or (result["findings"] or ["No findings."])[0]
    return _page(f"Experiment {result['experiment']}", []) | {
        "verdict": {"sentence": headline, "tone": "open"},
        "findings": [{"text": text, "about": "", "notable": True} for text in result["findings"]],
        "result_table": {"columns": list(columns), "rows": [list(row) for row in rows]},
    }


def with_cells(experiment: Page, cells: Page) -> Page:
    """Return the page of an experiment with the sections of its measured cells and, if they have one, their verdict."""
    page = {**cells, **{key: value for key, value in experiment.items() if value not in (None, [], {})}}
    if "figure" in cells["verdict"]:
        page["verdict"] = {**cells["verdict"], "more": experiment["verdict"]["sentence"]}
    return page


def options_text(options: Mapping[str, Any]) -> str:
    """Return the options of a trial in words: 'bf16, channels-last, compile'."""
    parts = [
        name.replace("_", "-") if value is True else f"{name.replace('_', ' ')} {value}"
        for name, value in options.items()
        if value not in (None, False)
    ]
    return ", ".join(parts) or "eager"


def time_text(moment: str) -> str:
    """Write an ISO 8601 time in UTC for readers: '2026-11-19 23:35 UTC'."""
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M} UTC"


def _best_trial(tune: Mapping[str, Any]) -> int | None:
    """Return the number of the best trial of a `tune` document, which stores the trial, its options or its number."""
    best = tune.get("best")
    if isinstance(best, int):
        return best
    options = best.get("options", best) if isinstance(best, Mapping) else None
    return next((number for number, trial in enumerate(tune["trials"]) if trial["options"] == options), None)


def _page(title: str, cells: Sequence[Cell]) -> Page:
    page: Page = {
        "title": title,
        "version": __version__,
        "created": date.today().isoformat(),
        "phases": list(PHASES),
        "communication": sorted(BETWEEN_DEVICES),
    }
    if cells:
        page["details"], page["topologies"] = _details(cells)
        page["recorded"] = _recorded(cells)
        page["cells"] = as_table(cells)
    return page


def _details(cells: Sequence[Cell]) -> tuple[list[Any], list[Any]]:
    """Move the pictures of cells to a list, replace them by their numbers, and store equal topologies once."""
    details: list[Any] = []
    topologies: dict[str, int] = {}
    for cell in cells:
        picture = cell.get("detail")
        if isinstance(picture, Mapping):
            text = json.dumps(rounded(picture["topology"]), sort_keys=True)
            number = topologies.setdefault(text, len(topologies))
            details.append({"timeline": rounded(picture["timeline"]), "topology": number, "use": picture["use"]})
            cell["detail"] = len(details) - 1
    return details, [json.loads(text) for text in topologies]


def _recorded(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Move recorded steps of cells, as many as the page has room for, to a list and replace them by their numbers."""
    steps: list[dict[str, Any]] = []
    room = MOST_RECORDED_BYTES
    for cell in cells:
        if step := cell.pop("recorded", None):
            step = rounded(step)
            room -= len(json.dumps(step))
            if room > 0:
                cell["recorded"] = len(steps)
                steps.append(step)
    return steps


def _tone(gain: float) -> str:
    return "good" if gain > LEAST_GAIN else "bad"


def verdict_of_cells(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the verdict on measured cells: the best speed-up of every workload, or why there is none."""
    by_workload: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.get("speedup") is not None and cell["devices"] > 1:
            by_workload[cell["workload"]].append(cell)
    if not by_workload:
        return {"sentence": _without_speedups(cells), "tone": "open"}
    best = {workload: max(group, key=_surely) for workload, group in by_workload.items()}
    top = max(best.values(), key=_surely)
    ordered = sorted(best.values(), key=_surely, reverse=True)
    named = len(ordered) if len(ordered) <= NAMED_WORKLOADS + 1 else NAMED_WORKLOADS
    sentence = " ".join(_gain_sentence(cell) for cell in ordered[:named])
    if rest := ordered[named:]:
        faster = sum(_surely(cell) > LEAST_GAIN for cell in rest)
        sentence += f" Of {len(rest)} further workloads, {faster} train faster on more devices."
    return {
        "sentence": sentence,
        "figure": ratio_text(top["speedup"]),
        "caption": f"best measured speed-up: {top['workload']} on {top['devices']} devices, batch {top['batch']}",
        "tone": "open" if _width(top) > VAGUE else _tone(_surely(top)),
    }


def ratio_text(ratio: float) -> str:
    """Write a speed-up with what it is worth: '1.52x', '21.9x'."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.3g}x"


def _surely(cell: Cell) -> float:
    """Lower end of the measured speed-up."""
    return float(cell.get("speedup_low") or cell["speedup"])


def _width(cell: Cell) -> float:
    """Distance from the measured speed-up to the upper end of its interval, relative to it."""
    return float((cell.get("speedup_high") or cell["speedup"]) / cell["speedup"] - 1)


def _gain_sentence(cell: Cell) -> str:
    ratio = ratio_text(cell["speedup"])
    where = f"{cell['strategy']} on {cell['devices']} devices at batch {cell['batch']}"
    uncertain = _surely(cell) <= LEAST_GAIN < (cell.get("speedup_high") or cell["speedup"])
    if _width(cell) > ROUGH or uncertain:
        where += f"; 95% interval {ratio_text(cell['speedup_low'])} to {ratio_text(cell['speedup_high'])}"
    if _surely(cell) > LEAST_GAIN:
        return f"{cell['workload']} trains {ratio} as fast as on one device ({where})."
    if uncertain:
        return f"Whether {cell['workload']} trains faster is uncertain: at best {ratio} ({where})."
    return f"{cell['workload']} is never faster on more devices: at best {ratio} ({where})."


def _without_speedups(cells: Sequence[Cell]) -> str:
    counts = Counter(cell["status"] for cell in cells)
    if not counts.get("ok"):
        return f"No cell could be timed: {listed([f'{count} {status}' for status, count in counts.items()])}."
    if all(cell["devices"] == 1 for cell in cells):
        return "Only one device was measured, so there is no speed-up to report."
    return "No cell on several devices has a cell on one device at the same batch, so there is no speed-up to report."


def accuracy_of(cells: Sequence[Cell]) -> dict[str, Any] | None:
    """Return the median error of the predicted epochs, and how many measured ones are inside their intervals."""
    both = [cell for cell in cells if cell.get("epoch") and cell.get("predicted_epoch") and cell["devices"] > 1]
    if not both:
        return None
    errors = [abs(cell["predicted_epoch"] / cell["epoch"] - 1) for cell in both]
    inside = sum(cell["predicted_epoch_low"] <= cell["epoch"] <= cell["predicted_epoch_high"] for cell in both)
    return {"cells": len(both), "median_error_percent": rounded(100 * median(errors)), "inside": inside}


def _verdict_of_advice(verdict: Mapping[str, Any]) -> dict[str, Any]:
    best = verdict["best"]
    gain = best.get("speedup") or best.get("speedup_per_device_batch")
    add = verdict["add_devices"]
    tone = "open" if add and not verdict.get("sure", True) else "good" if add else "bad"
    document = {"sentence": verdict["reason"], "tone": tone}
    if gain is not None:
        devices = f"{best['devices']} device{'s' if best['devices'] > 1 else ''}"
        document |= {"figure": ratio_text(gain), "caption": f"predicted speed-up on {devices} at batch {best['batch']}"}
    return document


def _verdict_of_comparison(
    comparison: Sequence[Mapping[str, Any]], verdict: Mapping[str, Any], first: str
) -> dict[str, Any]:
    """Return the recommendation with the cost or, without a price, the time of the recommended cluster."""
    document: dict[str, Any] = {}
    if verdict.get("recommendation"):
        document = {"sentence": verdict["recommendation"], "more": f"{first}: {verdict['reason']}"}
    entry = next((entry for entry in comparison if entry["cluster"] == verdict.get("recommended")), None)
    if entry is None or entry["time"] is None:
        return document
    time = seconds_text(entry["time"]) if entry["time"] < 7200 else f"{entry['time'] / 3600:.3g} hours"
    where = f"{'to finish' if entry['finishes'] else 'per million samples'} on {entry['cluster']}"
    if entry["cost"] is None:
        return document | {"figure": time, "caption": where, "tone": "good"}
    return document | {"figure": f"${entry['cost']:,.2f}", "caption": f"{where}, in {time}", "tone": "good"}


def _compared(workload: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the comparison of clusters: time and cost with their intervals, the best row as a cell.

    If the length of the training is not known, time and cost are per million samples.
    """
    best = entry.get("best")
    cell = advised_cells({"workload": workload, "cluster": entry["cluster"], "rows": [best]})[0] if best else {}
    finishes = entry.get("seconds_to_finish") is not None
    time = entry["seconds_to_finish"] if finishes else entry.get("seconds_per_million_samples")
    cost = entry.get("cost") if finishes else entry.get("cost_per_million_samples")
    compared: dict[str, Any] = {
        "cluster": entry["cluster"],
        "best": cell,
        "finishes": finishes,
        "time": time,
        "cost": cost,
        **{name: entry.get(name) for name in ("price_source", "quality", "would_fit", "energy_kWh", "utilisation")},
    }
    step = best and best.get("step_seconds")
    for name, value in (("time", time), ("cost", cost)):
        interval = entry.get("seconds_to_finish_interval" if name == "time" else "cost_interval")
        for end in ("low", "high"):
            if interval and finishes:
                compared[f"{name}_{end}"] = interval[end]
            elif value is not None and step:
                compared[f"{name}_{end}"] = value * step[end] / step["predicted"]
    return rounded(compared)  # type: ignore[no-any-return]


def _advice_entries(advice: Mapping[str, Any]) -> dict[str, Any]:
    profile = advice["profile"]
    entries = {
        "profiled device": profile.get("device"),
        "parameters": f"{profile['parameter_bytes'] / 1e6:,.1f} MB" if profile.get("parameter_bytes") else None,
        "samples per epoch": f"{profile['samples_per_epoch']:,}" if profile.get("samples_per_epoch") else None,
        "profiled batches": ", ".join(map(str, profile.get("batches", []))),
        "execution": profile.get("execution"),
    }
    return {name: str(value) for name, value in entries.items() if value}


def _environments(measurements: Sequence[Measurement], environments: Mapping[str, Environment]) -> list[dict[str, Any]]:
    """Return the machine, versions, data and conditions of every environment that a measurement refers to."""
    documents = []
    for key, kind in dict.fromkeys((one.environment, one.device_kind) for one in measurements):
        environment = environments[key]
        members = [one for one in measurements if (one.environment, one.device_kind) == (key, kind)]
        entries = {
            "cells": str(len(members)),
            "measured": " to ".join(
                dict.fromkeys([min(m.started for m in members)[:10], max(m.started for m in members)[:10]])
            ),
            "data": environment.data,
            "samples per epoch": f"{environment.samples_per_epoch:,}" if environment.samples_per_epoch else "",
            "protocol": ", ".join(sorted({one.protocol for one in members})),
            "optimizer": ", ".join(sorted({one.optimizer for one in members})),
            **{f"{name} version": str(version) for name, version in environment.versions.items()},
            **{
                name.replace("_", " "): str(value)
                for name, value in environment.conditions.items()
                if value is not None
            },
        }
        documents.append(
            {
                "machine": machine_text(environment, kind),
                "entries": {name: text for name, text in entries.items() if text},
            }
        )
    return documents
