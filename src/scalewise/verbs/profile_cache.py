"""Profiles kept in the user's cache, so that a question asked again is answered at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalewise.atomic import write_atomically
from scalewise.data.cache import cache_folder
from scalewise.errors import RunFailed, UserError
from scalewise.results.profile import Profile, ProfileDocument
from scalewise.verbs.describe import Description


class Cached:
    """One workload on one device: under the sum of all that its seconds depend on.

    The layers are part of it, so that a model of one's own that changes is timed again. Workload objects are not.
    """

    def __init__(self, workload: str | None, described: Description, circumstances: Mapping[str, Any]) -> None:
        self.path: Path | None = None
        if workload is not None:
            content = [workload, _source(workload), asdict(described), dict(circumstances)]
            name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
            self.path = cache_folder() / "profiles" / f"{name}.json"

    def read(self) -> ProfileDocument | None:
        """Nothing where there is none; one that cannot be read is made anew."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            return Profile.read(self.path).document
        except UserError:
            return None

    def write(self, document: ProfileDocument) -> None:
        """A disk that is full or read-only costs no more than the next wait."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, document.model_dump_json().encode())
        except (OSError, RunFailed):
            return

    def note(self, document: ProfileDocument) -> str:
        return f"kept since {document.measured_at} in {self.path}"


def _source(workload: str) -> str:
    """The file of one's own model, as it is now."""
    place = Path(workload.rpartition(":")[0] or workload)
    return hashlib.sha256(place.read_bytes()).hexdigest() if place.suffix == ".py" and place.is_file() else ""
