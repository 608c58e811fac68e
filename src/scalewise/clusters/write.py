"""A cluster as the text of its TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any

from scalewise.clusters.cluster import Cluster

SECTIONS = {"devices": "device", "links": "link", "measured": "measured"}


def cluster_text(cluster: Cluster, remarks: Sequence[str] = ()) -> str:
    """What `parse_cluster` reads as the same cluster; values that are the default's are left out."""
    lines = [*(f"# {remark}" for remark in remarks), *_entries(cluster)]
    for name, section in SECTIONS.items():
        for part in getattr(cluster, name):
            lines += ["", f"[[{section}]]", *_entries(part)]
    return "\n".join(lines) + "\n"


def _entries(part: Any) -> Iterator[str]:
    for field in fields(part):
        value = getattr(part, field.name)
        if not isinstance(value, tuple) and (field.default is MISSING or value != field.default):
            yield f"{field.name} = {_value(value)}"


def _value(value: Any) -> str:
    """Five digits are more than any link is measured to."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(f"{value:.5g}"))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
