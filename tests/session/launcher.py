"""To be interrupted or killed: `python -m tests.session.launcher DEVICES [HOSTS] [SLOW] [TASK]` waits in a task."""

from __future__ import annotations

import sys

from scalewise.session.placement import Placement, parse_slow
from scalewise.session.session import Session
from tests.session import tasks


def main(devices: str, hosts: str = "1", slow: str = "", task: str = "report_and_hang") -> None:
    link = "1gbit" if hosts != "1" else None
    placement = Placement(int(devices), "cpu", int(hosts), link, parse_slow(slow.split()), timeout_seconds=3600)
    with Session(placement) as session:
        session.run(getattr(tasks, task), on_report=lambda _, told: print(told, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
