"""Measured step times in a CSV file: anybody's figures, for profiles, calibration and validation.

model,devices,batch_per_device,step_seconds,strategy
ResNet-50,1,32,0.062,
ResNet-50,4,32,0.071,mirrored
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown

REQUIRED = ("model", "devices", "batch_per_device")
TIMES = ("step_seconds", "samples_per_second")
OPTIONAL = ("strategy", "precision", "hosts")
COLUMNS = (*REQUIRED, *TIMES, *OPTIONAL)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "bf16-weights", "fp16-weights")
"""Precisions of given step times. bf16 and fp16 mean autocast with fp32 weights, whose gradients are fp32 too; with
-weights, weights and gradients are 16-bit."""
DEFAULT_STRATEGY = "mirrored"
LARGEST_BYTES = 10_000_000
MOST_ROWS = 10_000
MOST_DEVICES = 100_000


@dataclass(frozen=True)
class MeasuredRow:
    """One measured step."""

    line: int
    """Line of the file, from 1."""
    model: str
    devices: int
    batch_per_device: int
    seconds: float
    strategy: str = DEFAULT_STRATEGY
    precision: str = ""
    """Empty if the file has none."""
    hosts: int = 1

    @property
    def batch(self) -> int:
        """Global batch."""
        return self.devices * self.batch_per_device

    @property
    def label(self) -> str:
        precision = f" {self.precision}" if self.precision else ""
        hosts = f" of {self.hosts} hosts" if self.hosts > 1 else ""
        return f"line {self.line}: {self.model}{precision} {self.strategy} on {self.devices} devices{hosts}"


def read_measured_csv(path: Path) -> list[MeasuredRow]:
    """Read the rows of a file. Raise UserError with the line and the valid values for what cannot be used."""
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise UserError(f"{path} has {size:,} bytes; at most {LARGEST_BYTES:,} are read")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a CSV file: it is not UTF-8 text") from None
    rows = list(_rows(path, text))
    if not rows:
        raise UserError(f"{path} has no rows; write lines below the heading {','.join(REQUIRED)},step_seconds")
    return rows


def _rows(path: Path, text: str) -> Iterator[MeasuredRow]:
    reader = csv.reader(text.splitlines())
    try:
        heading = [name.strip().lower() for name in next(reader, [])]
        _check_heading(path, heading)
        count = 0
        for values in reader:
            if not any(value.strip() for value in values):
                continue
            count += 1
            if count > MOST_ROWS:
                raise UserError(f"{path} has more than {MOST_ROWS:,} rows; give at most that many")
            yield _row(path, reader.line_num, heading, values)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def _check_heading(path: Path, heading: list[str]) -> None:
    for name in heading:
        if name not in COLUMNS:
            raise unknown(f"column in {path}, line 1:", name, COLUMNS)
        if heading.count(name) > 1:
            raise UserError(f"{path}, line 1: the column {name} is given twice")
    missing = [name for name in REQUIRED if name not in heading]
    if missing:
        raise UserError(f"{path}, line 1: the columns {', '.join(missing)} are missing; valid: {', '.join(COLUMNS)}")
    if not any(name in heading for name in TIMES):
        raise UserError(f"{path}, line 1: a column step_seconds or samples_per_second is missing")


def _row(path: Path, line: int, heading: list[str], values: list[str]) -> MeasuredRow:
    where = f"{path}, line {line}"
    if len(values) != len(heading):
        raise UserError(f"{where}: there are {len(values)} values for {len(heading)} columns")
    fields = {name: value.strip() for name, value in zip(heading, values, strict=True)}
    if not fields["model"]:
        raise UserError(f"{where}: model is empty")
    devices = _whole_number(where, "devices", fields["devices"])
    if devices > MOST_DEVICES:
        raise UserError(f"{where}: devices is {devices:,}; at most {MOST_DEVICES:,} are predicted")
    per_device = _whole_number(where, "batch_per_device", fields["batch_per_device"])
    hosts = _whole_number(where, "hosts", fields.get("hosts") or "1")
    if devices % hosts:
        raise UserError(f"{where}: {devices} devices cannot be divided evenly among {hosts} hosts")
    precision = fields.get("precision", "").lower()
    if precision and precision not in PRECISIONS:
        raise unknown(f"precision in {where}:", precision, PRECISIONS)
    strategy = fields.get("strategy") or DEFAULT_STRATEGY
    return MeasuredRow(
        line,
        fields["model"],
        devices,
        per_device,
        _seconds(where, fields, devices * per_device),
        strategy if devices > 1 else "single",
        precision,
        hosts,
    )


def _seconds(where: str, fields: dict[str, str], batch: int) -> float:
    given = {name: fields[name] for name in TIMES if fields.get(name)}
    if len(given) != 1:
        count = "both" if given else "none"
        raise UserError(f"{where}: {count} of step_seconds and samples_per_second is given; give one of them")
    [(name, value)] = given.items()
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UserError(f"{where}: {name} is {value!r}; it must be a finite number above 0")
    return number if name == "step_seconds" else batch / number


def _whole_number(where: str, name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise UserError(f"{where}: {name} is {value!r}; it must be a whole number of 1 or more")
    return number
