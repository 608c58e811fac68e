"""What cells run on: devices of one kind, each with the same share whatever their number, and their links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scalewise.errors import UserError
from scalewise.session.placement import Placement

LOOPBACK = "loopback"
FIRST_COUNT = 2
"""Files of this many devices have no number in their names."""
MACHINE = "machine.json"
GPU_SAMPLES = 1200
"""Every rank makes its data anew in every session, and sessions of slices follow each other."""


@dataclass(frozen=True)
class Machine:
    """Kept in the folder; one without is of two cores."""

    device_kind: str = "cpu"
    devices: tuple[int, ...] = (FIRST_COUNT,)
    slice_percent: int | None = None

    @classmethod
    def of(cls, device_kind: str, devices: Sequence[int]) -> Machine:
        if min(devices) < FIRST_COUNT:
            raise UserError(f"--devices {min(devices)} is what others are compared with; valid: {FIRST_COUNT} or more")
        share = 100 // max(devices) if device_kind == "slice" else None
        return cls(device_kind, tuple(sorted(set(devices))), share)

    @classmethod
    def in_folder(cls, out: Path, asked: Machine | None) -> Machine:
        """As asked, which must be what the folder was made with."""
        path = out / MACHINE
        if path.exists():
            kept = json.loads(path.read_text())
            found = cls(kept["device_kind"], tuple(kept["devices"]), kept["slice_percent"])
        elif any(out.glob("cluster-*")):
            found = cls()
        else:
            found = asked or cls()
            path.write_text(json.dumps(asdict(found)))
        if asked not in (None, found):
            raise UserError(f"{out} holds {found}, not {asked}; name another --out")
        return found

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
