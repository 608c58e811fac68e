"""What measurements were made on and with: an entry of `environment.json`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from scalewise.atomic import write_atomically
from scalewise.errors import UserError, in_our_words

FILE = "environment.json"
VARIES = "memory_bytes"
"""Of the hardware: by a few pages from one start of a machine to the next."""


class Environment(BaseModel):
    """Beside hardware and versions, what a cell's identity does not say: its data and how it was placed and loaded."""

    model_config = ConfigDict(frozen=True)

    hardware: dict[str, Any]
    """'cpu', 'cores', 'memory_bytes', 'gpus'."""
    versions: dict[str, str] = {}
    data: str = ""
    """Where the samples came from, in words."""
    samples_per_epoch: int | None = None
    conditions: dict[str, Any] = {}
    """Options of the sweep that are no part of a cell: 'load', 'cores_per_device', 'slow', 'slice_percent'."""

    @property
    def id(self) -> str:
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def place(self) -> dict[str, dict[str, Any]]:
        """What cells must share to be compared, by kind: the one definition of the same machine, software and data."""
        document = self.model_dump(mode="json")
        return {
            "hardware": {key: value for key, value in document["hardware"].items() if key != VARIES},
            "versions": document["versions"],
            "data": {"data": self.data, "samples": self.samples_per_epoch},
            "conditions": document["conditions"],
        }


def read_environments(folder: Path) -> dict[str, Environment]:
    """By id; none where the file is not there yet."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        return TypeAdapter(dict[str, Environment]).validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path} does not hold environments: {where}: {in_our_words(first['msg'])}") from None


def write_environments(folder: Path, environments: dict[str, Environment]) -> None:
    document = {key: each.model_dump(mode="json") for key, each in environments.items()}
    write_atomically(folder / FILE, json.dumps(document, indent=2).encode() + b"\n")
