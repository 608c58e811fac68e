"""Cluster: devices, hosts, links and prices; read from and written to TOML files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from scalewise.core.errors import UserError
from scalewise.core.files import read_limited
from scalewise.core.specs import unknown
from scalewise.hardware.collectives import BACKENDS

Between = Literal["devices", "hosts", "host-device"]
RING = "ring"
"""Name of Scalewise's own ring all-reduce in `Measured.operation`."""


HOST_UPDATE_GBps = 10.0
"""Assumed host memory bandwidth of updates on the host by a GPU's process, where it was not measured."""


@dataclass(frozen=True)
class Device:
    """One kind of device and its number per host."""

    name: str
    count: int
    memory_GB: float
    peak_TFLOPS: float
    """Peak in single precision without tensor cores."""
    memory_GBps: float
    launch_us: float
    """Time from the launch of a kernel to its start."""
    copy_GBps: float | None = None
    """Bandwidth at which a CPU rank's own core copies the data that it sends and receives; None if a copy engine does
    it."""
    beside_compute: float = 1.0
    """Slowdown factor of matrix multiplications while all devices of the host compute; 1 if they share nothing."""
    beside_memory: float = 1.0
    """Slowdown factor of memory-bound work, such as an update, while all devices of the host do it."""
    host_memory_GBps: float | None = None
    """Host memory bandwidth of one GPU's process while the processes of all GPUs update parameters there; None if it
    was not measured."""


@dataclass(frozen=True)
class Link:
    """Link between the devices of a host, between hosts, or between a device and host memory."""

    between: Between
    kind: str
    GBps: float
    """Effective bandwidth of one path in each direction, not the line rate."""
    latency_us: float
    shared: bool = False
    """Whether all traffic of a host shares one channel."""
    ports: int | None = None
    """Number of network interfaces of a host, each with this bandwidth; None: one. Collectives use all of them, one
    message uses one. Devices use the interfaces close to them, so half of a host's devices use half of them."""
    group: int | None = None
    """Number of consecutive devices that the link connects: 2 for bridges between pairs. None: all devices of a
    host."""
    pairs: bool = False
    """Whether the two directions between a pair of hosts share the bandwidth."""
    both_ways_GBps: float | None = None
    """Total bandwidth of sending and receiving at the same time; None if each direction has its own bandwidth."""
    host_GBps: float | None = None
    """Bandwidth that all copies of a host over this link have together, as they pass through its memory; None: not
    limited. Between hosts: without GPUDirect, messages pass through the memory of both hosts."""
    by_device: bool = False
    """Whether the device itself makes the copies and cannot compute meanwhile, as a CPU core does."""
    known_within: float | None = None
    """Relative standard deviation of the bandwidth, for calibration; None: the usual one of the catalogue."""
    source: str = ""
    """Source of the bandwidth and latency."""

    @property
    def all_ports_GBps(self) -> float:
        """Bandwidth of all network interfaces of a host together."""
        return self.GBps * (self.ports or 1)


@dataclass(frozen=True)
class Measured:
    """Measured bandwidth and latency of one operation on a number of devices; replaces the simulated cost."""

    operation: str
    backend: str
    devices: int
    GBps: float
    """Bandwidth of the busiest link."""
    latency_us: float
    hosts: int = 1
    """Number of hosts of the devices."""
    from_bytes: int = 0
    """Smallest tensor that the constants apply to. Tensors that fit caches have other constants."""
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """Identical hosts with their devices and links."""

    name: str
    hosts: int
    devices_per_host: int
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    price_per_hour: float | None = None
    """Price of the whole cluster in US dollars."""
    measured: tuple[Measured, ...] = ()
    backend: Literal["nccl", "gloo"] = "nccl"
    host_factor: float = 1.0
    """Duration of Python code on a host, relative to the hosts of the published tables."""
    knowledge: Literal["catalogue", "fitted", "measured"] = "catalogue"
    """Origin of the link constants; determines how wide the intervals of predictions are."""
    servers_apart: bool = False
    """Whether parameter servers have their own hosts, as on emulated hosts, or share the hosts of the devices."""
    summary: str = ""
    source: str = ""

    @property
    def size(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def has_gpus(self) -> bool:
        """Whether the devices are GPUs; otherwise they are cores of the host, without launch overhead."""
        return self.backend == "nccl" or self.devices[0].host_memory_GBps is not None

    @property
    def host_GBps(self) -> float | None:
        """Host memory bandwidth of a GPU's process, assumed if it was not measured; None if devices are CPU cores."""
        return (self.devices[0].host_memory_GBps or HOST_UPDATE_GBps) if self.has_gpus else None

    def device_at(self, place: int) -> Device:
        """Return the kind of the device at position `place` of a host."""
        for device in self.devices:
            if place < device.count:
                return device
            place -= device.count
        raise IndexError(f"{self.name} has no device {place} on a host")

    def link(self, between: Between) -> Link | None:
        """Return the link that connects all devices of a host, all hosts, or every device with host memory."""
        return next((link for link in self.links if link.between == between and link.group is None), None)

    def link_between(self, place: int, other: int) -> Link | None:
        """Return the link between two devices of a host; a link of a smaller group comes first."""
        within = [link for link in self.links if link.between == "devices"]
        for link in sorted(within, key=lambda link: link.group or self.devices_per_host + 1):
            if link.group is None or place // link.group == other // link.group:
                return link
        return None

    def measured_for(self, operation: str, backend: str, devices: int, hosts: int, bytes: int) -> Measured | None:
        """Return the measured constants of an operation for a tensor of `bytes`, or None."""
        key = operation, backend, devices, hosts
        matches = [
            measured
            for measured in self.measured
            if (measured.operation, measured.backend, measured.devices, measured.hosts) == key
            and measured.from_bytes <= bytes
        ]
        return max(matches, key=lambda measured: measured.from_bytes, default=None)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = TypeVar("Kind")
SECTIONS = {"device": Device, "link": Link, "measured": Measured}
MOST_FILE_BYTES = 2**20
MOST_PARTS = 1_000
"""Most [[device]], [[link]] or [[measured]] entries of a file."""
MOST_DEVICES_PER_HOST = 4_096
MOST = 1e15
"""Largest number in a file."""
_MAY_BE_ZERO = ("latency_us", "launch_us", "price_per_hour", "from_bytes")


def read_cluster(path: Path) -> Cluster:
    try:
        return parse_cluster(read_limited(path, MOST_FILE_BYTES).decode(), str(path))
    except OSError as error:
        raise UserError(f"cannot read the cluster file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a cluster file: it is not text") from None


def parse_cluster(text: str, where: str) -> Cluster:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} is not a cluster file: {problem}") from None
    parts: dict[str, list[Any]] = {}
    for section, kind in SECTIONS.items():
        entries = table.pop(section, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UserError(f"{where}: write [[{section}]], not [{section}]")
        if len(entries) > MOST_PARTS:
            raise UserError(f"{where}: there are {len(entries):,} [[{section}]] entries; valid: up to {MOST_PARTS:,}")
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
    if cluster.devices_per_host > MOST_DEVICES_PER_HOST:
        raise UserError(
            f"{where}: devices_per_host is {cluster.devices_per_host:,}; valid: 1 to {MOST_DEVICES_PER_HOST:,}"
        )
    count = sum(device.count for device in cluster.devices)
    if count != cluster.devices_per_host:
        raise UserError(
            f"{where}: devices_per_host is {cluster.devices_per_host}, but the counts of all [[device]] sum to {count}"
        )
    if cluster.devices_per_host > 1 and cluster.link("devices") is None:
        raise UserError(f'{where}: {count} devices need a [[link]] with between = "devices" and no group')
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
    valid = {field.name: field for field in fields(kind) if field.name not in inner}  # type: ignore[arg-type]
    for key in entries:
        if key not in valid:
            raise unknown(f"key in {where}:", key, valid)
    for name, field in valid.items():
        if field.default is MISSING and name not in entries:
            raise UserError(f"{where}: {name} is missing")
    return kind(**{key: _read_value(f"{where}: {key}", value, hints[key]) for key, value in entries.items()}, **inner)


def _read_value(key: str, value: Any, hint: Any) -> Any:
    if NoneType in get_args(hint):
        [hint] = [type_ for type_ in get_args(hint) if type_ is not NoneType]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{key} is {value!r}; valid: {', '.join(get_args(hint))}")
        return value
    if hint in (str, bool):
        if not isinstance(value, hint):
            raise UserError(f"{key} is {value!r}; it must be {'text' if hint is str else 'true or false'}")
        return value
    is_number = isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    may_be_zero = key.endswith(_MAY_BE_ZERO)
    if not is_number or not (value > 0 or (may_be_zero and value == 0)) or value > MOST:
        expected = "a whole number" if hint is int else "a number"
        least = "of 0 or more" if may_be_zero else "above 0"
        raise UserError(f"{key} is {_shown(value)}; it must be {expected} {least}, up to {MOST:g}")
    return value if hint is int else float(value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "a number of many digits"
    return text if len(text) <= 80 else f"{text[:80]}..."


_SECTION_OF_FIELD = {"devices": "device", "links": "link", "measured": "measured"}
KEYS = {
    "hosts": "all hosts are alike",
    "price_per_hour": "US dollars for the whole cluster; optional",
    "count": "devices of this kind per host",
    "peak_TFLOPS": "fp32 without tensor cores",
    "launch_us": "time from the launch of a kernel to its start",
    "beside_compute": "slowdown factor of matrix products while all devices of the host compute",
    "beside_memory": "slowdown factor of memory-bound work while all devices of the host do it",
    "between": "devices of a host, hosts, or host-device (a device and its host's memory)",
    "kind": "a name for the output",
    "GBps": "bandwidth of one path in each direction, as measured rather than as specified",
    "shared": "whether all traffic of a host shares one channel",
    "ports": "network interfaces per host, each with this bandwidth",
    "group": "devices are linked in groups of this size: 2 for bridges between pairs",
    "pairs": "whether the two directions between a pair of hosts share the bandwidth",
    "both_ways_GBps": "total of sending and receiving at once, if the directions share it",
    "host_GBps": "total of all copies of a host through its memory, if limited; between hosts: without GPUDirect",
    "by_device": "whether the device itself makes the copies, as a CPU core does",
    "known_within": "relative standard deviation of GBps, if it is known better than from specifications",
    "host_memory_GBps": "host memory bandwidth of one GPU's process, for updates on the host",
    "backend": "nccl or gloo",
    "host_factor": "duration of Python code on a host, relative to the hosts of the published tables",
    "knowledge": "origin of the links: catalogue, fitted or measured",
    "servers_apart": "whether parameter servers have their own hosts",
}
"""Meaning of the keys of a cluster file."""


def cluster_text(cluster: Cluster, remarks: Sequence[str] = ()) -> str:
    """Return a cluster as TOML text for `parse_cluster`, without values that equal the default."""
    lines = [*(f"# {remark}" for remark in remarks), *_entries(cluster)]
    for name, section in _SECTION_OF_FIELD.items():
        for part in getattr(cluster, name):
            lines += ["", f"[[{section}]]", *_entries(part)]
    return "\n".join(lines) + "\n"


def cluster_template(cluster: Cluster, remarks: Sequence[str] = ()) -> str:
    """Return a cluster as TOML text with every key, for editing: keys are explained where they first occur, and keys
    without a value are comments."""
    explained: set[str] = set()
    lines = [*(f"# {remark}" for remark in remarks), *_all_entries(cluster, explained)]
    for name, section in _SECTION_OF_FIELD.items():
        for part in getattr(cluster, name):
            lines += ["", f"[[{section}]]", *_all_entries(part, explained)]
    return "\n".join(lines) + "\n"


def _entries(part: Any) -> Iterator[str]:
    for field in fields(part):
        value = getattr(part, field.name)
        if not isinstance(value, tuple) and (field.default is MISSING or value != field.default):
            yield f"{field.name} = {_value_text(value)}"


def _all_entries(part: Any, explained: set[str]) -> Iterator[str]:
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, tuple):
            continue
        is_new = field.name in KEYS and field.name not in explained
        explained.add(field.name)
        entry = f"# {field.name} =" if value is None else f"{field.name} = {_value_text(value)}"
        if is_new or value is not None:
            yield f"{entry}  # {KEYS[field.name]}" if is_new else entry


def _value_text(value: Any) -> str:
    """Return a value as TOML, numbers with five significant digits: links are not measured more exactly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(f"{value:.5g}"))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
