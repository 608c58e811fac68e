"""Saved results of `scalewise tune`, found again by workload, device and versions. Imports no torch.

A folder per workload, device and versions holds one file per batch and precision.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from math import log
from pathlib import Path
from typing import Any

from scalewise import __version__
from scalewise.core.errors import RunFailed
from scalewise.core.files import cache_folder, write_atomically
from scalewise.core.training_options import ExecutionOptions, Precision, TrainingOptions

SCHEMA = 1
"""Version of the file format; files of another version are ignored."""


def source_hash(workload: str) -> str:
    """Hash of the file that defines the user's model; empty for a named workload."""
    file = Path(workload.rpartition(":")[0] or workload)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".py" and file.is_file() else ""


def versions() -> dict[str, str]:
    """Versions that step times depend on."""
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = ""
    return {"scalewise": __version__, "torch": torch_version, "python": platform.python_version()}


@dataclass(frozen=True)
class TunedKey:
    """Everything that a saved result is found by, apart from batch and precision."""

    workload: str
    device: str
    """Name of the device, as in profiles."""
    input_shape: str | None = None
    classes: int | None = None
    optimizer: str | None = None

    @property
    def folder(self) -> Path:
        content = [asdict(self), source_hash(self.workload), versions()]
        name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
        return cache_folder() / "tuned" / name


@dataclass(frozen=True)
class TunedOptions:
    """What `train --tuned` and `advise` use of a saved result."""

    options: ExecutionOptions
    """Fastest options that preserve the mathematics of the given precision."""
    speedup: float
    """Step time of plain eager training divided by that of the options."""
    baseline_seconds: float
    """Seconds per step of plain eager training."""
    seconds: float
    """Seconds per step with the options."""
    batch: int
    precision: Precision
    measured_at: str
    interrupted: bool
    """Whether the search ended early, so that faster options may exist."""

    @property
    def text(self) -> str:
        """Return '2.7x (compile, channels_last; same mathematics)'."""
        return f"{self.speedup:.3g}x ({self.options.label}; same mathematics)"

    @property
    def is_plain(self) -> bool:
        """Whether plain eager training is the fastest."""
        return self.options == plain_options(self.precision)


def plain_options(precision: Precision = TrainingOptions.precision) -> ExecutionOptions:
    """Options of plain eager training."""
    return ExecutionOptions(execution="eager", precision=precision)


def result_file(key: TunedKey, batch: int, precision: str) -> Path:
    return key.folder / f"batch-{batch}-{precision}.json"


def save_document(path: Path, document: Mapping[str, Any]) -> bool:
    """Write a result; return whether it was saved. A full disk or a read-only home directory does not fail the run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"schema": SCHEMA, **document}, indent=2).encode())
    except (OSError, RunFailed):
        return False
    return True


def read_document(path: Path) -> dict[str, Any] | None:
    """Return a saved result; None if there is none, or if it is damaged or of another schema."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == SCHEMA else None


def tuned_options(key: TunedKey, batch: int, precision: Precision) -> TunedOptions | None:
    """Return the saved result of this precision for this batch, else for the nearest batch; None if there is none."""
    results = [result for result in saved_options(key) if result.precision == precision]
    return min(results, key=lambda result: abs(log(result.batch / batch)), default=None)


def saved_options(key: TunedKey) -> list[TunedOptions]:
    """Return all saved results of a workload on a device."""
    documents = [read_document(path) for path in sorted(key.folder.glob("batch-*.json"))]
    return [options for document in documents if document and (options := _options_of(document))]


def _options_of(document: Mapping[str, Any]) -> TunedOptions | None:
    try:
        result = document["result"]
        best, baseline = result["best"], result["trials"][0]
        return TunedOptions(
            ExecutionOptions(**best["options"]),
            best["speedup"],
            baseline["step_seconds"]["median"],
            best["step_seconds"]["median"],
            result["batch"],
            result["precision"],
            result["measured_at"],
            result["interrupted"],
        )
    except (KeyError, TypeError, IndexError):
        return None
