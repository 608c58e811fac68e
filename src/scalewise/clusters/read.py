"""Clusters as TOML files, and one sentence for each way in which a file is not one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from scalewise.clusters.cluster import RING, Cluster, Device, Link, Measured
from scalewise.collectives import BACKENDS
from scalewise.errors import UserError
from scalewise.spec import unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = TypeVar("Kind")
SECTIONS = {"device": Device, "link": Link, "measured": Measured}
ZERO_IS_FINE = ("latency_us", "launch_us", "price_per_hour", "from_bytes")


def read_cluster(path: Path) -> Cluster:
    try:
        return parse_cluster(path.read_text(), str(path))
    except OSError as error:
        raise UserError(f"cannot read the cluster {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a cluster: it is not text") from None


def parse_cluster(text: str, where: str) -> Cluster:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not a cluster: {error}") from None
    parts: dict[str, list[Any]] = {}
    for section, kind in SECTIONS.items():
        entries = table.pop(section, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UserError(f"{where}: write [[{section}]], not [{section}]")
        parts[section] = [
            _build(kind, entry, f"{where}: [[{section}]] {number}") for number, entry in enumerate(entries, 1)
        ]
    inner: dict[str, Any] = {
        "devices": tuple(parts["device"]),
        "links": tuple(parts["link"]),
        "measured": tuple(parts["measured"]),
    }
    cluster = _build(Cluster, table, where, inner)
    _check(cluster, where)
    return cluster


def _check(cluster: Cluster, where: str) -> None:
    counted = sum(device.count for device in cluster.devices)
    if counted != cluster.devices_per_host:
        raise UserError(f"{where}: devices_per_host is {cluster.devices_per_host}, but its [[device]]s count {counted}")
    if cluster.devices_per_host > 1 and cluster.link("devices") is None:
        raise UserError(f'{where}: no [[link]] with between = "devices" joins all devices of a host')
    if cluster.hosts > 1 and cluster.link("hosts") is None:
        raise UserError(f'{where}: {cluster.hosts} hosts need a [[link]] with between = "hosts"')
    for measured in cluster.measured:
        if measured.backend not in BACKENDS:
            raise unknown(f"backend in {where}", measured.backend, BACKENDS)
        operations = [*BACKENDS[measured.backend], RING]
        if measured.operation not in operations:
            raise unknown(f"operation in {where}", measured.operation, operations)


def _build(kind: type[Kind], entries: Mapping[str, Any], where: str, inner: Mapping[str, Any] | None = None) -> Kind:
    hints = get_type_hints(kind)
    inner = inner or {}
    known = {field.name: field for field in fields(kind) if field.name not in inner}  # type: ignore[arg-type]
    for key in entries:
        if key not in known:
            raise unknown(f"key in {where}:", key, known)
    for name, field in known.items():
        if field.default is MISSING and name not in entries:
            raise UserError(f"{where}: {name} is missing")
    return kind(**{key: _value(f"{where}: {key}", value, hints[key]) for key, value in entries.items()}, **inner)


def _value(what: str, value: Any, hint: Any) -> Any:
    if NoneType in get_args(hint):
        [hint] = [each for each in get_args(hint) if each is not NoneType]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{what} is {value!r}; valid: {', '.join(get_args(hint))}")
        return value
    if hint in (str, bool):
        if not isinstance(value, hint):
            raise UserError(f"{what} is {value!r}; it must be {'text' if hint is str else 'true or false'}")
        return value
    fine = isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    zero = what.endswith(ZERO_IS_FINE)
    if not fine or not (value > 0 or (zero and value == 0)) or value == float("inf"):
        sort = "a whole number" if hint is int else "a number"
        raise UserError(f"{what} is {value!r}; it must be {sort} {'of 0 or more' if zero else 'above 0'}")
    return value if hint is int else float(value)
