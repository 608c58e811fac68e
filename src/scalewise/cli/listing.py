"""`scalewise list`."""

from __future__ import annotations

import dataclasses
import json as json_format
from typing import Annotated, Any, Literal

import typer

from scalewise.cli import options

Kind = Literal["strategies", "workloads", "clusters", "experiments"]


def listing(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    json: options.Json = False,
) -> None:
    """List the strategies or the built-in workloads with their options, the clusters or the experiments."""
    makers = {"strategies": _strategies, "workloads": _workloads, "clusters": _clusters, "experiments": _experiments}
    rows = makers[kind]()
    if json:
        print(json_format.dumps({kind: rows}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("name", no_wrap=True)
    # Below each other, so that neither column is ever narrower than a word.
    table.add_column("what it is" + (", with its options" if any(map(_options_text, rows)) else ""), overflow="fold")
    for row in rows:
        about = row["summary"] if row.get("exact", True) else f"{row['summary']} (not exact)"
        table.add_row(row["name"], about)
        if options := _options_text(row):
            table.add_row("", Text(options, style="dim"))
    Console(highlight=False).print(table)


def _options_text(row: dict[str, Any]) -> str:
    """'width=8, norm=none|batch, full (width=64, depth=4)'."""
    choices = row.get("choices", {})
    shown = [f"{key}={choices.get(key, value)}" for key, value in row.get("options", {}).items()]
    for preset, values in row.get("presets", {}).items():
        shown.append(f"{preset} ({', '.join(f'{key}={value}' for key, value in values.items())})")
    return ", ".join(shown)


def _strategies() -> list[dict[str, Any]]:
    from scalewise.strategies.registry import STRATEGIES
    from scalewise.strategies.strategy import choices_of

    return [
        {
            "name": name,
            "summary": kind.summary,
            "exact": kind().exact,
            "options": dataclasses.asdict(kind()),  # type: ignore[call-overload]
            "choices": choices_of(kind),
        }
        for name, kind in STRATEGIES.items()
    ]


def _workloads() -> list[dict[str, Any]]:
    from scalewise.workloads.catalogue import CATALOGUE

    return [
        {
            "name": name,
            "summary": entry.summary,
            "options": {key: default for key, (default, _) in entry.options.items()},
            "presets": {preset: dict(values) for preset, values in entry.presets.items()},
        }
        for name, entry in CATALOGUE.items()
    ]


def _clusters() -> list[dict[str, Any]]:
    from scalewise.clusters.catalogue import catalogue

    return [
        {
            "name": cluster.name,
            "summary": cluster.summary,
            "devices": cluster.size,
            "device": cluster.devices[0].name,
            "links": {link.between: f"{link.kind}, {link.GBps:g} GB/s" for link in cluster.links},
            "price_per_hour": cluster.price_per_hour,
        }
        for cluster in catalogue().values()
    ]


def _experiments() -> list[dict[str, Any]]:
    from scalewise.experiments.registry import EXPERIMENTS

    return [{"name": name, "summary": experiment.summary} for name, experiment in EXPERIMENTS.items()]
