"""The survey's introduction as an experiment: why GPUs, and when a task is too small to move to one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from scalewise.atomic import write_atomically
from scalewise.experiments.gpu_vs_cpu_figure import draw
from scalewise.experiments.gpu_vs_cpu_probes import CPU, Task, convolution_seconds, cores_busy, memory_GBps, tasks
from scalewise.experiments.gpu_vs_cpu_words import (
    bandwidth_words,
    busy_words,
    headline,
    moving_words,
    survey_claims,
)
from scalewise.experiments.remarks import cores_in_use, load_remarks, roughness
from scalewise.results.experiment import ExperimentResult
from scalewise.results.units import seconds_text
from scalewise.session.cores import allowed_cores
from scalewise.session.hardware import cpu_name

BATCHES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
QUICK_BATCHES = (1, 2, 5, 10, 20)
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
QUICK_SIZES = SIZES[:7]
MEGABYTES = 400
BUSY_BATCH = 20
BUSY = "The machine was busy: times that do not grow with the work say nothing about the CPU."
NO_GPU = "there is no GPU here: what follows is the CPU half; run it on a machine with one for the comparison"


def run(out: Path, quick: bool, tell: Callable[[str], None]) -> ExperimentResult:
    """Half a minute if quick. All of the CPU's cores are used, as torch does by itself."""
    gpu = torch.device("cuda", 0) if torch.cuda.is_available() else None
    devices = {"cpu": CPU, **({"gpu": gpu} if gpu else {})}
    cores = len(allowed_cores())
    budget = 0.3 if quick else 2.0
    machine = f"{cores} cores of {cpu_name()}" + (f", {torch.cuda.get_device_name(gpu)}" if gpu else "")
    used = cores_in_use()
    loaded = load_remarks(used, cores)
    for remark in (*([] if gpu else [NO_GPU]), *loaded):
        tell(remark)
    tell("copying memory ...")
    GBps = {name: memory_GBps(device, MEGABYTES, budget) for name, device in devices.items()}
    tell(f"  {bandwidth_words(GBps)}")
    convolution: dict[str, dict[int, float]] = {}
    for name, device in devices.items():
        tell(f"a convolution layer on the {name.upper()} ...")
        batches = QUICK_BATCHES if quick else BATCHES
        convolution[name] = {batch: convolution_seconds(device, batch, budget) for batch in batches}
    tell("sums and products of matrices ...")
    moved = tasks(QUICK_SIZES if quick else SIZES, gpu, budget / 3)
    tell("cores busy while a layer trains ...")
    busy = {name: cores_busy(device, BUSY_BATCH, 1.0 if quick else 10.0) for name, device in devices.items()}
    claims = survey_claims(GBps, convolution, moved, busy, cores)
    result = ExperimentResult(
        "gpu-vs-cpu",
        [
            *([] if gpu else [NO_GPU]),
            *(f"the survey: {claim.statement}: {claim.verdict} ({claim.here})" for claim in claims),
            moving_words(moved, "sum"),
            *busy_words(moved),
            *loaded,
        ],
        ["task", "on the CPU", "copies", "on the GPU", "worth moving"],
        [_row(task) for task in moved],
        draw(GBps, convolution, moved, busy, cores, machine, out, BUSY if busy_words(moved) else ""),
        [out / "gpu-vs-cpu.json", out / "findings.md"],
        {
            "machine": machine,
            "memory_GBps": GBps,
            "convolution_seconds": convolution,
            "tasks": [asdict(task) | {"worth_moving": task.worth_moving} for task in moved],
            "cores_busy": busy,
            "cores": cores,
            "claims": [{**vars(claim), "verdict": claim.verdict} for claim in claims],
        },
        headline=headline(machine, claims) + roughness(used, cores, []),
    )
    write_atomically(out / "gpu-vs-cpu.json", json.dumps(result.to_json(), indent=2).encode())
    write_atomically(out / "findings.md", result.to_markdown().encode())
    return result


def _row(task: Task) -> list[str]:
    return [
        f"{task.kind} {task.size} x {task.size}",
        seconds_text(task.cpu_seconds),
        "-" if task.copy_seconds is None else seconds_text(task.copy_seconds),
        "-" if task.gpu_seconds is None else seconds_text(task.gpu_seconds),
        {True: "yes", False: "no", None: "-"}[task.worth_moving],
    ]
