"""What cells run on: devices of one kind, each with the same share whatever their number, and their links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scalewise.errors import UserError
from scalewise.session.placement import Placement

LOOPBACK = "loopback"
FEWEST = 2
MACHINE = "machine.json"
GPU_SAMPLES = 1200
"""Every rank makes its data anew in every session, and sessions of slices follow each other."""


@dataclass(frozen=True)
class Machine:
    """Kept in the folder."""

    device_kind: str = "cpu"
    devices: tuple[int, ...] = (FEWEST,)
    slice_percent: int | None = None

    @classmethod
    def of(cls, device_kind: str, devices: Sequence[int]) -> Machine:
        if min(devices) < FEWEST:
            raise UserError(f"--devices {min(devices)} is what others are compared with; valid: {FEWEST} or more")
        share = 100 // max(devices) if device_kind == "slice" else None
        return cls(device_kind, tuple(sorted(set(devices))), share)

    @classmethod
    def in_folder(cls, out: Path, asked: Machine | None) -> Machine:
        """As asked, which must be what the folder was made with."""
        path = out / MACHINE
        if path.exists():
            kept = json.loads(path.read_text())
            found = cls(kept["device_kind"], tuple(kept["devices"]), kept["slice_percent"])
        else:
            found = asked or cls()
            path.write_text(json.dumps(asdict(found)))
        if asked not in (None, found):
            raise UserError(f"{out} holds {found}, not {asked}; name another --out")
        return found

    @property
    def drifts(self) -> bool:
        """A core of a shared machine may be a third slower ten minutes later; a GPU that nobody shares is not."""
        return self.device_kind == "cpu"

    @property
    def samples(self) -> int | None:
        return None if self.device_kind == "cpu" else GPU_SAMPLES

    def placement(self, devices: int, link: str, servers: int = 0) -> Placement:
        hosts, speed = hosts_of(link) if devices > 1 else (1, None)
        return Placement(
            devices, self.device_kind, hosts=hosts, link=speed, slice_percent=self.slice_percent, servers=servers
        )


def hosts_of(link: str) -> tuple[int, str | None]:
    return (1, None) if link == LOOPBACK else (2, link)
