"""Command on two real hosts (two processes of this machine): sessions of several sizes, and failures."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

from scalewise.core.errors import RunFailed
from scalewise.launch.host_process import run_on_hosts
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.launch.real_hosts import real_hosts
from scalewise.launch.session import Session
from scalewise.training.train import train
from tests.launch import tasks


def command() -> None:
    """Run sessions and print what happened as JSON."""
    happened: dict[str, Any] = {"under_torchrun": under_torchrun()}
    hosts = real_hosts()
    assert hosts is not None
    for devices in (1, 2, 3):
        with Session(Placement(devices, "cpu")) as session:
            happened[f"hosts of {devices}"] = [rank["host"] for rank in session.run(tasks.where)]
            happened[f"total of {devices}"] = session.run(tasks.total, 1.0)
    with ServedSession(Placement(1, "cpu", servers=2), tasks.serve) as served:
        served.run(tasks.where)
        happened["hosts of servers"] = [server["host"] for server in served.served]
    reports: list[object] = []
    with Session(Placement(3, "cpu", timeout_seconds=20)) as session:
        session.run(tasks.count_up, 2, on_report=lambda rank, value: reports.append([rank, value["step"]]))
        happened["killed"] = _failure(lambda: session.run(tasks.fail_on, 2, "kill"))
    happened["reports"] = sorted(reports)
    with Session(Placement(3, "cpu", timeout_seconds=20)) as session:
        happened["raised"] = _failure(lambda: session.run(tasks.fail_on, 2, "raise"))
    with Session(Placement(3, "cpu", timeout_seconds=8)) as session:
        happened["hung"] = _failure(lambda: session.run(tasks.fail_on, 2, "hang"))
    with Session(Placement(3, "cpu", timeout_seconds=20)) as session:
        agent = _agent_of(session.run(tasks.where)[2]["pid"])
    _train_until_host_is_lost(agent, happened)
    happened["too few"] = _failure(lambda: Session(Placement(3, "cpu")))
    with Session(Placement(2, "cpu")) as session:
        happened["after the loss"] = session.run(tasks.total, 1.0)
    print(json.dumps(happened), flush=True)
    sys.exit(7)


def _train_until_host_is_lost(agent: int, happened: dict[str, Any]) -> None:
    """Train on three devices, lose the second host, and continue on two."""

    def lose_host(_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(agent, signal.SIGKILL)

    with TemporaryDirectory() as folder:
        result = train(
            "synthetic:parameters=20000,flops=100000",
            strategy="mirrored",
            devices=3,
            device_kind="cpu",
            samples=600,
            batch=12,
            steps=300,
            checkpoint=f"{folder}/a.safetensors",
            max_restarts=1,
            min_devices=2,
            on_report=lose_host,
        )
    happened["lost"] = result.restarts[0].cause
    happened["devices after the loss"] = [result.devices, result.hosts]


def _failure(work: Any) -> str:
    try:
        work()
    except RunFailed as failed:
        return str(failed)
    return "no failure"


def _agent_of(rank: int) -> int:
    """Process that owns the forkserver from which a rank was started."""
    import psutil

    return psutil.Process(rank).parent().parent().pid  # type: ignore[union-attr]


if __name__ == "__main__":
    run_on_hosts(command)
