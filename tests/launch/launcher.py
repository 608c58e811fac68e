"""Launcher that tests interrupt or kill: `python -m tests.launch.launcher DEVICES [HOSTS] [SLOW] [TASK]`."""

from __future__ import annotations

import sys

from scalewise.launch.placement import Placement, parse_slow
from scalewise.launch.session import Session
from tests.launch import tasks


def main(devices: str, hosts: str = "1", slow: str = "", task: str = "report_and_hang") -> None:
    link = "1gbit" if hosts != "1" else None
    placement = Placement(int(devices), "cpu", int(hosts), link, parse_slow(slow.split()), timeout_seconds=3600)
    with Session(placement) as session:
        session.run(getattr(tasks, task), on_report=lambda _, value: print(value, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
