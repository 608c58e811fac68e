"""A sweep that is killed ten times at random moments, resumed each time, and then left to end.

A process of its own, which forks before it uses any thread: each start costs no import. One device, in the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

import psutil
import torch._dynamo  # noqa: F401  an optimizer's first step would load it, in every fork

from scalewise.results.store import Store
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement
from scalewise.strategies.strategy import Strategy
from scalewise.verbs import sessions
from scalewise.verbs import sweep as sweeps
from scalewise.verbs.measure import measure
from scalewise.verbs.opening import AnySession

BATCHES = range(2, 14)
KILLS = 10


def in_this_process(strategy: Strategy, placement: Placement) -> AnySession:  # noqa: ARG001
    return InProcess(placement)


def start(folder: Path) -> int:
    """Its process id."""
    if child := os.fork():
        return child
    sessions.open_for = in_this_process
    sweeps.FEWEST_CELLS, sweeps.WINDOW = 10**6, 2  # cells are recorded early: there is something to lose
    try:
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
    """At a random moment, and so that ten kills are spread over the sweep on slow machines too; its exit code."""
    wanted = lines(folder) + random.randint(0, 1)
    while lines(folder) < wanted and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
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
