"""What a person would start with torchrun: every rank runs this, the main one prints."""

from __future__ import annotations

import json
import sys

from scalewise.session.failure import RankFailed
from scalewise.session.placement import Placement
from scalewise.session.torchrun import TorchrunSession, under_torchrun
from tests.session import tasks

if __name__ == "__main__":
    told: list[object] = []
    with TorchrunSession(Placement(device_kind="cpu")) as session:
        totals = session.run(tasks.total, 1.0)
        session.run(tasks.count_up, 2, on_report=lambda rank, what: told.append([rank, what]))
        if session.is_main:
            print(json.dumps([under_torchrun(), session.placement.devices, totals, told]), flush=True)
        try:
            session.run(tasks.fail_on, 1, "raise")
        except RankFailed as failed:
            print(failed.kind, failed, file=sys.stderr, flush=True)
            raise SystemExit(1) from None
