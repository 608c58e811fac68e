"""`scalewise doctor`: software, devices, backends and data on this machine, and what is missing."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psutil
import torch
import torch.distributed
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise import __version__
from scalewise.core.errors import UserError
from scalewise.core.units import Printable, bytes_text
from scalewise.data.dataset import DataRequest
from scalewise.data.speech import find_speech, recordings
from scalewise.launch import emulated_hosts
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.devices import cpu_name
from scalewise.runtime import byte_counters

MARKS = {"ok": Text("✓", style="green"), "missing": Text("·", style="yellow"), "bad": Text("✗", style="red")}


@dataclass(frozen=True)
class Check:
    """Result of one check. If something is missing, `fix` says how to get it."""

    name: str
    status: Literal["ok", "missing", "bad"]
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class Checkup(Printable):
    """All checks, by group."""

    groups: dict[str, list[Check]]

    def to_json(self) -> dict[str, Any]:
        return {name: [asdict(check) for check in checks] for name, checks in self.groups.items()}

    def records(self) -> list[dict[str, Any]]:
        return [{"group": name, **asdict(check)} for name, checks in self.groups.items() for check in checks]

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        for title, checks in self.groups.items():
            table = Table.grid(padding=(0, 2))
            table.add_column(width=1)
            table.add_column(style="dim", width=16)
            table.add_column(overflow="fold")
            for check in checks:
                text = Text(check.found)
                if check.fix:
                    text.append(f"\n→ {check.fix}", style="yellow")
                table.add_row(MARKS[check.status], check.name, text)
            parts += [Text(title, style="bold"), table, Text()]
        return Group(*parts[:-1])


def doctor() -> Checkup:
    """Check software, devices, backends and data of this machine, without changing anything.

    Returns:
        A `Checkup`, which prints as a list. Checks that are not "ok" say how to fix them.

    Examples:
        >>> list(scalewise.doctor().groups)
        ['Software', 'Devices', 'Ways to run', 'Data']
    """
    return Checkup(
        {
            "Software": _software(),
            "Devices": [*_cpu(), *_gpus()],
            "Ways to run": _backends(),
            "Data": _data(),
        }
    )


def _software() -> list[Check]:
    torch_ok = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 10)
    zoo = importlib.util.find_spec("transformers") is not None
    return [
        Check("scalewise", "ok", __version__),
        Check("python", "ok", platform.python_version()),
        Check(
            "torch",
            "ok" if torch_ok else "bad",
            f"{torch.__version__} ({'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPU build'})",
            None if torch_ok else "Scalewise needs torch 2.10 or later: pip install --upgrade torch",
        ),
        Check(
            "zoo",
            "ok" if zoo else "missing",
            "transformers is installed: hf:NAME workloads work"
            if zoo
            else "transformers is not installed, so hf:NAME workloads are unavailable",
            None if zoo else "pip install transformers",
        ),
    ]


def _cpu() -> list[Check]:
    memory = psutil.virtual_memory()
    usable, total = len(allowed_cores()), psutil.cpu_count() or 1
    cores = f"{usable} core{'s' if usable > 1 else ''}" + (f" usable of {total}" if usable < total else "")
    return [
        Check("cpu", "ok", f"{cpu_name()}: {cores} = {usable} cpu device{'s' if usable > 1 else ''}"),
        Check("memory", "ok", f"{bytes_text(memory.total)}, {bytes_text(memory.available)} free"),
    ]


def _gpus() -> list[Check]:
    if not torch.version.cuda:
        return [Check("gpu", "missing", "torch without CUDA", "install a CUDA build of torch to use NVIDIA GPUs")]
    if not torch.cuda.is_available():
        return [
            Check("gpu", "missing", "no usable NVIDIA GPU", "check that nvidia-smi lists one and the driver fits torch")
        ]
    checks = []
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        checks.append(
            Check(
                f"gpu {number}",
                "ok",
                f"{gpu.name}: {bytes_text(total)}, {bytes_text(free)} free, {gpu.multi_processor_count} "
                f"multiprocessors, compute capability {gpu.major}.{gpu.minor}, driver {_driver_version()}",
            )
        )
    return checks


def _driver_version() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _backends() -> list[Check]:
    gloo, nccl = torch.distributed.is_gloo_available(), torch.distributed.is_nccl_available()
    mps = shutil.which("nvidia-cuda-mps-control")
    obstacle = emulated_hosts.obstacle()
    counted = byte_counters.available()
    return [
        Check(
            "cpu ranks",
            "ok" if gloo else "bad",
            "gloo" if gloo else "torch without gloo",
            None if gloo else "install a torch build with gloo",
        ),
        Check("cuda ranks", "ok" if nccl else "missing", "NCCL" if nccl else "torch without NCCL (it needs CUDA)"),
        Check("cuda graphs", *(("ok", "yes") if torch.cuda.is_available() else ("missing", "need an NVIDIA GPU"))),
        Check(
            "slices",
            "ok" if mps else "missing",
            "CUDA MPS control found" if mps else "no nvidia-cuda-mps-control, so a GPU cannot be split into slices",
            None if mps else "install the compute utilities of the NVIDIA driver",
        ),
        Check(
            "emulated hosts",
            "missing" if obstacle else "ok",
            obstacle or "network namespaces with shaped links (ip, tc)",
        ),
        Check(
            "byte counters",
            "ok" if counted else "missing",
            "TCP counters of the kernel" if counted else "counting the bytes of TCP connections needs Linux",
        ),
    ]


def _data() -> list[Check]:
    try:
        folder = find_speech(DataRequest())
        count = len(recordings(folder)) if folder else 0
    except UserError as error:
        return [Check("speech", "bad", str(error))]
    if folder is None:
        return [
            Check(
                "speech",
                "missing",
                "no recordings: synthetic speech is used instead",
                "scalewise data speech (12 MB), or set SCALEWISE_SPEECH to a folder of wav files",
            )
        ]
    return [Check("speech", "ok", f"{count:,} recordings in {folder}")]
