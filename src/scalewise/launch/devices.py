"""Devices of this machine and their names; slices of one GPU through CUDA MPS."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.forkserver import run_afterwards
from scalewise.launch.placement import Placement, check_one_machine
from scalewise.launch.real_hosts import real_hosts
from scalewise.runtime.device_memory import memory_limit_bytes

SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_CONTROL = "nvidia-cuda-mps-control"
_START_SECONDS = 20


@contextmanager
def slices(devices: int, percent: int | None) -> Iterator[dict[str, str]]:
    """Start an MPS daemon and yield the environment that makes a process one slice, if set before CUDA starts.

    MPS divides the multiprocessors, not memory bandwidth or caches. Clocks, compute mode and partitions of the GPU, and
    other MPS daemons, are not changed: this daemon has its own folder. It ends with the block or with this process.
    """
    control = shutil.which(_CONTROL)
    if control is None:
        raise UserError(
            f"slices need CUDA MPS, but the command '{_CONTROL}' is not installed; use --device-kind cuda or cpu"
        )
    folder = Path(tempfile.mkdtemp(prefix="scalewise-mps-"))
    pipes, logs = folder / "pipes", folder / "logs"
    mps = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    with run_afterwards(_end(control, mps, folder)):
        pipes.mkdir()
        logs.mkdir()
        _start(control, mps, folder)
        share = 100 // devices if percent is None else percent
        # The daemon sees one GPU only, so that its clients know that GPU as number 0.
        yield mps | {SHARE_VARIABLE: str(share), "CUDA_VISIBLE_DEVICES": "0"}


def _start(control: str, mps: dict[str, str], folder: Path) -> None:
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    # A file instead of a pipe: the daemon would keep a pipe open, and `run` would wait for its end.
    log = folder / "start.txt"
    with log.open("w") as output:
        try:
            process = subprocess.run(
                [control, "-d"],
                env={**os.environ, **mps, "CUDA_VISIBLE_DEVICES": first_gpu},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=_START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{_CONTROL} did not start within {_START_SECONDS} s") from None
    if process.returncode:
        raise RunFailed(
            f"{_CONTROL} did not start (exit code {process.returncode}): {' '.join(log.read_text().split())}"
        )


def _end(control: str, mps: dict[str, str], folder: Path) -> str:
    """Shell script that asks the daemon to quit and, after five seconds, kills it and its servers by process id."""
    ask = f"timeout 5 {shlex.quote(control)} 2>/dev/null"
    pid_file = shlex.quote(str(Path(mps["CUDA_MPS_PIPE_DIRECTORY"]) / f"{_CONTROL}.pid"))
    return "\n".join(
        [
            *(f"export {name}={shlex.quote(value)}" for name, value in mps.items()),
            f"daemon=$(cat {pid_file} 2>/dev/null)",
            f"servers=$(echo get_server_list | {ask})",
            f"echo quit -t 2 | {ask}",
            "for i in $(seq 50); do",
            '  left=""; for id in $daemon $servers; do kill -0 "$id" 2>/dev/null && left="$left $id"; done',
            '  [ -z "$left" ] && break; sleep 0.1',
            "done",
            '[ -z "$left" ] || kill -9 $left',
            f"rm -rf {shlex.quote(str(folder))}",
        ]
    )


def settle(placement: Placement) -> Placement:
    """Replace device kind 'auto' by 'cuda' or 'cpu'; raise UserError if this machine cannot provide the devices."""
    if hosts := real_hosts():
        return hosts.settle(placement)
    gpus = torch.cuda.device_count()
    kind, devices = placement.device_kind, placement.devices
    check_one_machine(placement)
    if kind == "auto":
        only_cpu = placement.hosts > 1 or placement.slow
        return replace(placement, device_kind="cuda" if gpus >= devices and not only_cpu else "cpu")
    if kind == "cuda" and gpus < devices:
        raise UserError(
            f"{devices} CUDA device{'s' if devices > 1 else ''} requested, but this machine has {gpus}; use "
            "--device-kind cpu or slice"
        )
    if kind == "slice" and gpus == 0:
        raise UserError("slices need a CUDA device and this machine has none; use --device-kind cpu")
    return placement


def limit_memory(device: torch.device) -> None:
    """Limit the CUDA memory of this process to the value of SCALEWISE_MEMORY_LIMIT_GB, if that is set."""
    limit_bytes = memory_limit_bytes()
    if limit_bytes is not None:
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), device)


def cpu_name() -> str:
    """Model name of the processor, or its architecture if the system gives no name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """Name a device: 'NVIDIA H200', '25 % of NVIDIA H200' for a slice, or 'one core of AMD EPYC'."""
    if device.type == "cuda":
        share = os.environ.get(SHARE_VARIABLE, "100")
        return ("" if share == "100" else f"{share} % of ") + torch.cuda.get_device_name(device)
    return f"one core of {cpu_name()}"
