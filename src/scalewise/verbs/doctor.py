"""`scalewise doctor`: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import platform
import shutil

import psutil
import torch
import torch.distributed

from scalewise import __version__
from scalewise.data.data import DataRequest
from scalewise.data.speech import find_speech, recordings
from scalewise.errors import UserError
from scalewise.results.checks import Check, Checkup
from scalewise.results.units import bytes_text
from scalewise.session import hosts
from scalewise.session.cores import allowed_cores
from scalewise.session.hardware import cpu_name
from scalewise.tracing import sockets


def doctor() -> Checkup:
    """Look, change nothing.

    >>> print(scalewise.doctor())
    """
    return Checkup(
        {
            "Software": _software(),
            "Devices": [*_cpu(), *_gpus()],
            "Ways to run": _engines(),
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
            "transformers is installed: hf:NAME workloads work" if zoo else "no transformers, so no hf:NAME workloads",
            None if zoo else "pip install 'scalewise[zoo]'",
        ),
    ]


def _cpu() -> list[Check]:
    memory = psutil.virtual_memory()
    usable, there = len(allowed_cores()), psutil.cpu_count() or 1
    cores = f"{usable} core{'s' if usable > 1 else ''}" + (f" usable of {there}" if usable < there else "")
    return [
        Check("cpu", "ok", f"{cpu_name()}: {cores} = {usable} cpu device{'s' if usable > 1 else ''}"),
        Check("memory", "ok", f"{bytes_text(memory.total)}, {bytes_text(memory.available)} free"),
    ]


def _gpus() -> list[Check]:
    if not torch.version.cuda:
        return [Check("gpu", "missing", "this torch has no CUDA", "install a CUDA build of torch to use NVIDIA GPUs")]
    if not torch.cuda.is_available():
        return [
            Check("gpu", "missing", "no usable NVIDIA GPU", "check that nvidia-smi lists one and the driver fits torch")
        ]
    checks = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        checks.append(
            Check(
                f"gpu {number}",
                "ok",
                f"{about.name}: {bytes_text(total)}, {bytes_text(free)} free, {about.multi_processor_count} "
                f"multiprocessors, compute capability {about.major}.{about.minor}, driver {_driver()}",
            )
        )
    return checks


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _engines() -> list[Check]:
    gloo, nccl = torch.distributed.is_gloo_available(), torch.distributed.is_nccl_available()
    mps = shutil.which("nvidia-cuda-mps-control")
    obstacle = hosts.obstacle()
    counted = sockets.available()
    return [
        Check(
            "cpu ranks",
            "ok" if gloo else "bad",
            "gloo" if gloo else "this torch has no gloo",
            None if gloo else "install a torch build with gloo",
        ),
        Check("cuda ranks", "ok" if nccl else "missing", "NCCL" if nccl else "no NCCL in this torch (it needs CUDA)"),
        Check("cuda graphs", *(("ok", "yes") if torch.cuda.is_available() else ("missing", "need an NVIDIA GPU"))),
        Check(
            "slices",
            "ok" if mps else "missing",
            "CUDA MPS control found" if mps else "no nvidia-cuda-mps-control, so a GPU cannot be cut into slices",
            None if mps else "it comes with the NVIDIA driver's compute utilities",
        ),
        Check(
            "rehearsed hosts",
            "missing" if obstacle else "ok",
            obstacle or "network namespaces with shaped links (ip, tc)",
        ),
        Check(
            "traced bytes",
            "ok" if counted else "missing",
            "the kernel's TCP counters" if counted else "only Linux tells the bytes of a TCP connection",
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
                "scalewise data speech (12 MB), or point SCALEWISE_SPEECH at a folder of wavs",
            )
        ]
    return [Check("speech", "ok", f"{count:,} recordings in {folder}")]
