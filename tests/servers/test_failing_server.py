"""A server that cannot go on ends the run; real processes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from scalewise.session.failure import RankFailed
from scalewise.session.placement import Placement
from scalewise.session.served import ServedSession
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.outcome import Report
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.verbs.opening import open_session
from tests.conftest import SessionOf


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    settings = Settings(4, None, 10**6, checkpoint=folder / "tiny.safetensors", checkpoint_every=5)
    endless = Request("tests.tiny:float32", strategy_of("parameter-server-async"), settings)
    with open_session(endless.strategy, Placement(2, "cpu")) as session:

        def take_away(_rank: int, _report: Report) -> None:
            shutil.rmtree(folder, ignore_errors=True)

        with pytest.raises(RankFailed, match=r"cannot write .*tiny\.safetensors: No such file or directory"):
            session.run(train_task, endless, on_report=take_away)


@pytest.mark.parametrize(("strategy", "role"), [("parameter-server", "rank"), ("parameter-server-async", "worker")])
def test_lists_of_processes_tell_workers_and_servers_apart(strategy: str, role: str, session_of: SessionOf) -> None:
    pids = session_of(2, strategy_of(strategy)).pids
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
    assert names == [f"sw {role} 0", f"sw {role} 1", "sw server 0"]


@pytest.mark.parametrize("strategy", ["parameter-server:servers=2", "parameter-server-async:servers=2"])
def test_a_server_that_hangs_ends_the_run_and_is_named(strategy: str) -> None:
    endless = Request("tests.tiny:float32", strategy_of(strategy), Settings(4, None, 10**6))
    # Long enough for a busy machine to connect them.
    with open_session(endless.strategy, Placement(2, "cpu", timeout_seconds=3)) as session:
        assert isinstance(session, ServedSession)

        def stop(_rank: int, _report: Report) -> None:
            os.kill(session.pids[-1], signal.SIGSTOP)

        with pytest.raises(RankFailed, match=r"^server 1 did not answer within 3 s$"):
            session.run(train_task, endless, on_report=stop)
