"""Devices that cells run on: all of one kind, each with the same share of a GPU whatever their number, and links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scalewise.core.errors import UserError
from scalewise.launch.placement import Placement

LOOPBACK = "loopback"
FEWEST = 2
MACHINE = "machine.json"
GPU_SAMPLES = 1200
"""Samples on GPUs. Few, because every rank generates its data again in every session."""


@dataclass(frozen=True)
class Machine:
    """Device kind and device counts, saved in the output folder."""

    device_kind: str = "cpu"
    devices: tuple[int, ...] = (FEWEST,)
    slice_percent: int | None = None

    @classmethod
    def of(cls, device_kind: str, devices: Sequence[int]) -> Machine:
        if min(devices) < FEWEST:
            raise UserError(f"--devices {min(devices)} is the baseline; valid: {FEWEST} or more")
        share = 100 // max(devices) if device_kind == "slice" else None
        return cls(device_kind, tuple(sorted(set(devices))), share)

    @classmethod
    def in_folder(cls, out: Path, requested: Machine | None) -> Machine:
        """Return the machine saved in the folder, or save the requested one; raise UserError if they differ."""
        path = out / MACHINE
        if path.exists():
            content = json.loads(path.read_text())
            machine = cls(content["device_kind"], tuple(content["devices"]), content["slice_percent"])
        else:
            machine = requested or cls()
            path.write_text(json.dumps(asdict(machine)))
        if requested not in (None, machine):
            raise UserError(f"{out} holds {machine}, not {requested}; choose another --out")
        return machine

    @property
    def drifts(self) -> bool:
        """Whether the speed changes over minutes: a core of a shared machine may, an unshared GPU does not."""
        return self.device_kind == "cpu"

    @property
    def samples(self) -> int | None:
        return None if self.device_kind == "cpu" else GPU_SAMPLES

    def placement(self, devices: int, link: str, servers: int = 0) -> Placement:
        hosts, bandwidth = hosts_of(link) if devices > 1 else (1, None)
        return Placement(
            devices, self.device_kind, hosts=hosts, link=bandwidth, slice_percent=self.slice_percent, servers=servers
        )


def hosts_of(link: str) -> tuple[int, str | None]:
    return (1, None) if link == LOOPBACK else (2, link)
