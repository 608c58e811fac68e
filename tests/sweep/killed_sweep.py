"""Script that kills a sweep ten times at random moments, resumes it each time and finally lets it finish.

It forks before it starts any thread, so that no start has to import again. The sweep uses one device, in the process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

import psutil
import torch._dynamo  # noqa: F401  an optimizer's first step would load it, in every fork

from scalewise.formats.store import Store
from scalewise.launch.existing_processes import InProcess
from scalewise.launch.placement import Placement
from scalewise.strategies.base import Strategy
from scalewise.sweep import sweep as sweeps
from scalewise.sweep.measure import measure
from scalewise.training import session_pool
from scalewise.training.session_pool import AnySession
from tests.short_visits import shortened

BATCHES = range(2, 14)
KILLS = 10


def in_this_process(strategy: Strategy, placement: Placement) -> AnySession:  # noqa: ARG001
    return InProcess(placement)


def start(folder: Path) -> int:
    """Fork a process that runs the sweep; return its process id."""
    if child := os.fork():
        return child
    session_pool.open_for = in_this_process
    sweeps.FEWEST_CELLS, sweeps.WINDOW = 10**6, 2  # record cells early, so that a kill could lose some
    try:
        with shortened():
            measure(
                ["tests.tiny:float32", "tests.tiny:float64"],
                strategy="single",
                devices=[1],
                batch=BATCHES,
                device_kind="cpu",
                samples=20,
                interval=1e3,
                resume=True,
                out=folder,
            )
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)


def lines(folder: Path) -> int:
    path = folder / "measurements.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(child: int, folder: Path, random: Random) -> int:
    """Kill the process at a random moment and return its exit code.

    It waits for up to one more cell, so that ten kills are spread over the sweep on slow machines too.
    """
    target = lines(folder) + random.randint(0, 1)
    while lines(folder) < target and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    gc.freeze()
    folder, random = Path(sys.argv[1]), Random(int(sys.argv[2]))
    cells: list[int] = []
    for _ in range(KILLS):
        if kill(start(folder), folder, random) != -signal.SIGKILL:
            break
        cells.append(len(Store.read(folder)) if lines(folder) else 0)
    _, status = os.waitpid(start(folder), 0)
    print(json.dumps({"cells": cells, "exit": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
