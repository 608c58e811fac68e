"""Compare `--on slurm` and `--on ray` with plain torchrun: step time and start-up of the same training.

    python -m benchmarks.schedulers                 # root; `make test-clusters` installs Slurm and Ray
    python -m benchmarks.schedulers --rounds 5 --json

Two emulated hosts with two ranks each, joined by links of 10 Gbit/s. The three take turns. Slurm and Ray run only
during their turns, so that the step time includes what their daemons take from the cores. Start-up is everything but
the steps: from the command to the first step, and from the last step to the end of the command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.clusters.ray_cluster import ray_cluster
from tests.clusters.slurm_cluster import slurm_cluster
from tests.clusters.test_torchrun import torchrun

from scalewise.launch.emulated_hosts import emulate_hosts

LINK = "10gbit"
ON = "nodes=2,devices_per_node=2"
STEPS = 300
TRAINING = (
    "train", "synthetic:parameters=2000000,flops=40000000", "--samples", "640", "--steps", str(STEPS), "--batch", "64",
    "--device-kind", "cpu", "--strategy", "mirrored", "--json",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training."""

    step_seconds: float
    """Median step."""
    start_up_seconds: float


def timed(process: subprocess.Popen[str], started: float) -> Run:
    output, messages = process.communicate(timeout=300)
    wall = perf_counter() - started
    if process.returncode:
        raise SystemExit(messages)
    result = json.loads(output)
    return Run(result["step_seconds"]["median"], wall - sum(result["epoch_seconds"]))


def with_torchrun(folder: Path) -> Run:
    with emulate_hosts(2, LINK) as hosts:
        started = perf_counter()
        with torchrun(hosts, 2, *TRAINING, folder=folder) as processes:
            return timed(processes[0], started)


def with_slurm(folder: Path) -> Run:
    with slurm_cluster(folder) as cluster:
        started = perf_counter()
        return timed(cluster.start_scalewise(*TRAINING, "--on", f"slurm:{ON},time=10", folder=folder), started)


def with_ray(folder: Path) -> Run:
    with ray_cluster(folder) as cluster:
        on = f"ray:address={cluster.address},{ON}"
        started = perf_counter()
        return timed(cluster.start_scalewise(*TRAINING, "--on", on, folder=folder), started)


LAUNCHERS: dict[str, Callable[[Path], Run]] = {
    "torchrun": with_torchrun,
    "--on slurm": with_slurm,
    "--on ray": with_ray,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {name: [] for name in LAUNCHERS}
    for _ in range(options.rounds):
        for name, launch in LAUNCHERS.items():
            with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp", ignore_cleanup_errors=True) as folder:
                runs[name].append(launch(Path(folder)))
    rows = [
        {
            "launcher": name,
            "step_ms": [round(1e3 * run.step_seconds, 2) for run in timed_runs],
            # Of every round, because the speed of a shared machine changes between rounds.
            "step_ratio": median(
                run.step_seconds / plain.step_seconds for run, plain in zip(timed_runs, runs["torchrun"], strict=True)
            ),
            "start_up_seconds": median(run.start_up_seconds for run in timed_runs),
        }
        for name, timed_runs in runs.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"{row['launcher']:12} steps {row['step_ms']} ms, ratio {row['step_ratio']:.3f}, "
            f"start-up {row['start_up_seconds']:.1f} s"
        )


if __name__ == "__main__":
    main()
