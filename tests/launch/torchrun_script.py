"""Script that a test starts with torchrun: every rank runs it, the main rank prints."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys

from scalewise.core.errors import RankFailed
from scalewise.launch.existing_processes import TorchrunSession
from scalewise.launch.placement import Placement, under_torchrun
from tests.launch import tasks

if __name__ == "__main__":
    how, separate_hosts = sys.argv[1], "separate hosts" in sys.argv
    if separate_hosts:  # the ranks take themselves for ranks on different machines
        platform.node = lambda: f"node{os.environ['RANK']}"
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # `scalewise.train` handles the signal that torchrun sends to the others
    reports: list[object] = []
    with TorchrunSession(Placement(device_kind="cpu")) as session:
        totals = session.run(tasks.total, 1.0)
        session.run(tasks.count_up, 2, on_report=lambda rank, value: reports.append([rank, value]))
        if session.is_main:
            print(json.dumps([under_torchrun(), session.placement.devices, totals, reports]), flush=True)
        try:
            session.run(tasks.fail_on, 1, how)
        except RankFailed as failed:
            print(failed.kind, failed, file=sys.stderr, flush=True)
            raise SystemExit(1) from None
