"""Measurement of a cell, and the folder of them: `measurements.jsonl` and `environment.json`."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Hashable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from scalewise.core.errors import RunFailed, UserError, in_our_words
from scalewise.core.files import open_unlinked, read_limited, sole_writer, write_atomically
from scalewise.core.statistics import Interval
from scalewise.core.timeline import RecordedStep
from scalewise.formats.train_result import BytesPerStep

SCHEMA: Final = 1
IDENTIFYING_FIELDS = (
    "workload", "strategy", "options", "devices", "device_kind", "hosts", "link", "batch", "batch_per_device",
    "precision", "optimizer", "protocol", "execution",
)  # fmt: skip
Status = Literal["ok", "oom", "failed", "skipped"]
Protocol = Literal["quick", "paper"]

MOST_COUNT, MOST_SECONDS, MOST_BYTES = 1e12, 1e9, 1e18
"""Largest values that are read."""

INTERVAL_NOT_REACHED = "interval-not-reached"
DRIFT = "drift"
OVERSUBSCRIBED = "oversubscribed"
NO_GRAPH = "no-graph"
"""Flags of a measurement.

interval-not-reached: the time budget ended before the interval was narrow enough. drift: the machine's speed changed
during the measurement. oversubscribed: CPU devices shared cores. no-graph: `--execution auto` ran eagerly although a
CUDA graph was expected.
"""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Timed cell. The fields before `step_seconds` identify the cell."""

    schema: Literal[1] = SCHEMA
    workload: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    devices: int
    device_kind: str
    hosts: int = 1
    link: str | None = None
    batch: int
    """Global batch."""
    batch_per_device: int
    precision: str = "fp32"
    optimizer: str
    protocol: Protocol
    execution: str
    """'eager' or 'graph'; of a cell that did not run, the mode that it would have used."""
    step_seconds: Interval | None = None
    epoch_seconds: float | None = None
    """Seconds of one epoch: composed of steps and overhead in `quick`, the median of the timed epochs in `paper`."""
    phases: dict[str, float] = field(default_factory=dict)
    bytes_per_step: BytesPerStep | None = None
    peak_memory_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None
    """Reason for a status other than 'ok'."""
    flags: list[str] = field(default_factory=list)
    environment: str
    """Id of the environment in `environment.json`."""
    started: str
    """Start time: ISO 8601, in UTC."""
    timeline: RecordedStep | None = None
    """One recorded step of all devices; left out of the JSON document if there is none."""

    def __post_init__(self) -> None:
        if self.status == "ok" and self.step_seconds is None and self.epoch_seconds is None:
            raise ValueError("status is 'ok' but there are neither step_seconds nor epoch_seconds")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status is '{self.status}' without a reason")
        for name in ("devices", "hosts", "batch", "batch_per_device"):
            if not 1 <= getattr(self, name) <= MOST_COUNT:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 1 to {MOST_COUNT:g}")
        step = self.step_seconds
        if step is not None and not (
            0 < step.median <= MOST_SECONDS and step.low <= step.median <= step.high < math.inf
        ):
            raise ValueError("step_seconds: it must be above 0, with low <= median <= high")
        for name, seconds in {"epoch_seconds": self.epoch_seconds or 0.0, **self.phases}.items():
            if not 0 <= seconds <= MOST_SECONDS:
                raise ValueError(f"{name} is {seconds} s; it must be from 0 to {MOST_SECONDS:g}")
        counts = [self.peak_memory_bytes or 0]
        if self.bytes_per_step:
            counts += [self.bytes_per_step.planned, self.bytes_per_step.traced or 0, self.bytes_per_step.busiest]
        if any(not 0 <= count <= MOST_BYTES for count in counts):
            raise ValueError(f"bytes must be from 0 to {MOST_BYTES:g}")

    @property
    def identity(self) -> Hashable:
        """Key that is equal for all measurements of a cell."""
        return identity_of(vars(self))

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        if self.timeline is None:
            del document["timeline"]
        return document

    def to_line(self) -> bytes:
        return json.dumps(self.to_json(), allow_nan=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Measurement:
        """Parse a line of `measurements.jsonl`; raise pydantic's ValidationError (a ValueError) if it is invalid."""
        return _adapter().validate_json(line)


def identity_of(fields: Mapping[str, Any]) -> Hashable:
    """Return the identity of a cell from its fields; the cell may not be measured yet."""
    return tuple(
        tuple(sorted(fields[name].items())) if name == "options" else fields[name] for name in IDENTIFYING_FIELDS
    )


@cache
def _adapter() -> TypeAdapter[Measurement]:
    return TypeAdapter(Measurement)


ENVIRONMENT_FILE = "environment.json"
MOST_ENVIRONMENT_BYTES = 16 * 2**20
MOST_MEASUREMENTS_BYTES = 64 * 2**20
"""Largest files that are read: 64 MB are 50,000 measurements."""
VARIES = "memory_bytes"
"""Entry of `Environment.hardware` that is not compared: it differs by a few pages after each boot."""


class Environment(BaseModel):
    """Conditions of a measurement that are not part of a cell: hardware, versions, data, placement and loading."""

    model_config = ConfigDict(frozen=True)

    hardware: dict[str, Any]
    """Keys: 'cpu', 'cores', 'memory_bytes', 'gpus'."""
    versions: dict[str, str] = {}
    data: str = ""
    """Description of the source of the samples."""
    samples_per_epoch: int | None = None
    conditions: dict[str, Any] = {}
    """Options of the sweep that are not part of a cell: 'load', 'cores_per_device', 'slow', 'slice_percent'."""

    @property
    def id(self) -> str:
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def place(self) -> dict[str, dict[str, Any]]:
        """Machine, software and data; only cells with equal places are compared."""
        document = self.model_dump(mode="json")
        return {
            "hardware": {key: value for key, value in document["hardware"].items() if key != VARIES},
            "versions": document["versions"],
            "data": {"data": self.data, "samples": self.samples_per_epoch},
            "conditions": document["conditions"],
        }


def read_environments(folder: Path) -> dict[str, Environment]:
    """Read the environments of a folder by id; return an empty dict if there is no file yet."""
    path = folder / ENVIRONMENT_FILE
    if not path.exists():
        return {}
    try:
        return TypeAdapter(dict[str, Environment]).validate_json(read_limited(path, MOST_ENVIRONMENT_BYTES))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path} is not a file of environments: {where}: {in_our_words(first['msg'])}") from None


def write_environments(folder: Path, environments: dict[str, Environment]) -> None:
    document = {key: environment.model_dump(mode="json") for key, environment in environments.items()}
    write_atomically(folder / ENVIRONMENT_FILE, json.dumps(document, indent=2).encode() + b"\n")


MEASUREMENTS_FILE = "measurements.jsonl"


class Store:
    """Writer of a folder of measurements: `with Store(folder) as store: store.append(measurement)`.

    Entering the context creates the folder and locks it against other writers. A measurement is on the disk when
    `append` returns. Reading with `Store.read` needs no lock.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._file: BinaryIO | None = None
        self._resources = ExitStack()
        self._created: list[Path] = []
        """Folders and files that did not exist before, the outermost first."""
        self._latest: dict[Hashable, Measurement] = {}
        self._environments: dict[str, Environment] = {}

    @staticmethod
    def read(*folders: Path | str) -> list[Measurement]:
        """Return the latest measurement of every cell of each folder, in the order of their writing.

        Equal cells of different folders stay separate, because they may come from different machines.
        """
        measurements: list[Measurement] = []
        for folder in map(Path, folders):
            path = folder / MEASUREMENTS_FILE
            if not path.is_file():
                raise UserError(
                    f"no measurements in {folder}: there is no {MEASUREMENTS_FILE}; "
                    f"create it with: scalewise measure --out {folder}"
                )
            measurements += _latest(_read(path)[0]).values()
        return measurements

    @staticmethod
    def environments(*folders: Path | str) -> dict[str, Environment]:
        """Return the environments of the folders by id; raise UserError if a measurement refers to a missing one."""
        environments: dict[str, Environment] = {}
        for folder in map(Path, folders):
            stored = read_environments(folder)
            used = (
                {measurement.environment for measurement in _read(folder / MEASUREMENTS_FILE)[0]}
                if (folder / MEASUREMENTS_FILE).is_file()
                else set()
            )
            if missing := sorted(used - set(stored)):
                raise UserError(
                    f"{folder / ENVIRONMENT_FILE} {f'lacks {missing[0]}' if stored else 'is missing or empty'}, and "
                    f"{folder / MEASUREMENTS_FILE} refers to it for the machine of each measurement; "
                    f"copy the {ENVIRONMENT_FILE} that was written with these measurements"
                )
            environments |= stored
        return environments

    @property
    def measurements(self) -> list[Measurement]:
        """Latest measurement of every cell, read at opening or appended since."""
        return list(self._latest.values())

    def __enter__(self) -> Store:
        path = self.folder / MEASUREMENTS_FILE
        paths = [*reversed(self.folder.parents), self.folder, path, self.folder / ENVIRONMENT_FILE]
        self._created = [path for path in paths if not path.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder {self.folder}: {error.strerror}") from None
        with ExitStack() as resources:
            resources.callback(self._remove_if_empty, folders=True)
            resources.enter_context(sole_writer(self.folder))
            resources.callback(self._remove_if_empty, folders=False)  # while the folder is still locked
            self._environments = read_environments(self.folder)
            self._latest = {}
            if path.exists():
                lines, whole_bytes, complete = _read(path)
                self._latest = _latest(lines)
                _repair(path, whole_bytes, complete)
            try:
                self._file = resources.enter_context(_open_to_append(path))
                _flush_folder(self.folder)
            except OSError as error:
                raise RunFailed(f"cannot write {path}: {error.strerror}") from error
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._file = None
        self._resources.close()

    def _remove_if_empty(self, folders: bool) -> None:
        """Remove the created files, or the created folders, of a sweep without measurements."""
        if not self._latest:
            for path in reversed(self._created):
                with suppress(OSError):  # it does not exist, or others use the folder by now
                    if path.is_dir() == folders:
                        path.rmdir() if folders else path.unlink()

    def append(self, measurement: Measurement) -> None:
        """Write a measurement to the disk; an error leaves the file as it was."""
        assert self._file is not None
        if measurement.environment not in self._environments:
            raise KeyError(f"environment {measurement.environment} is not in the store; add it first")
        line = measurement.to_line()
        before = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)
            raise RunFailed(f"cannot write {self.folder / MEASUREMENTS_FILE}: {error.strerror}") from error
        self._latest.pop(measurement.identity, None)
        self._latest[measurement.identity] = measurement

    def add_environment(self, environment: Environment) -> str:
        """Store an environment and return its id for `Measurement.environment`."""
        if environment.id not in self._environments:
            self._environments[environment.id] = environment
            write_environments(self.folder, self._environments)
        return environment.id


def _latest(measurements: list[Measurement]) -> dict[Hashable, Measurement]:
    latest: dict[Hashable, Measurement] = {}
    for measurement in measurements:
        latest.pop(measurement.identity, None)  # the new entry goes to the end
        latest[measurement.identity] = measurement
    return latest


def _read(path: Path) -> tuple[list[Measurement], int, bool]:
    """Return the measurements of all complete lines, the bytes of these lines, and whether the last has a newline.

    A line that a killed process left incomplete is skipped, unless only its newline is missing.
    """
    try:
        content = read_limited(path, MOST_MEASUREMENTS_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    *lines, rest = content.split(b"\n")
    measurements = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    if not rest:
        return measurements, len(content), True
    try:
        return [*measurements, Measurement.from_line(rest)], len(content), False
    except ValueError:
        return measurements, len(content) - len(rest), True


def _parse(path: Path, number: int, line: bytes) -> Measurement:
    try:
        return Measurement.from_line(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if where == "schema":
            raise UserError(
                f"{path}, line {number}: schema is {first['input']!r}, but this version of Scalewise reads {SCHEMA}; "
                "update Scalewise to read the file"
            ) from None
        raise UserError(
            f"{path}, line {number} is not a measurement: {f'{where}: ' if where else ''}{in_our_words(first['msg'])}; "
            "correct the line or remove it"
        ) from None


def _open_to_append(path: Path) -> BinaryIO:
    descriptor = open_unlinked(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return os.fdopen(descriptor, "ab", buffering=0)


def _repair(path: Path, whole_bytes: int, complete: bool) -> None:
    with os.fdopen(open_unlinked(path, os.O_RDWR), "r+b") as file:
        file.truncate(whole_bytes)
        if not complete:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush a folder: the name of a new file is on the disk only after its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
