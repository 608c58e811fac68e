"""A failing server ends the run, tested with real processes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from scalewise.core.errors import RankFailed
from scalewise.core.training_options import Settings
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.training.results import Report, Request
from scalewise.training.session_pool import open_session
from scalewise.training.tasks import train_task
from tests.conftest import SessionOf


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    settings = Settings(4, None, 10**6, checkpoint=folder / "tiny.safetensors", checkpoint_every=5)
    endless = Request("tests.tiny:float32", strategy_of("parameter-server-async"), settings)
    with open_session(endless.strategy, Placement(2, "cpu")) as session:

        def remove_folder(_rank: int, _report: Report) -> None:
            shutil.rmtree(folder, ignore_errors=True)

        with pytest.raises(RankFailed, match=r"cannot write .*tiny\.safetensors: No such file or directory"):
            session.run(train_task, endless, on_report=remove_folder)


@pytest.mark.parametrize(("strategy", "role"), [("parameter-server", "rank"), ("parameter-server-async", "worker")])
def test_process_names_distinguish_workers_and_servers(strategy: str, role: str, session_of: SessionOf) -> None:
    pids = session_of(2, strategy_of(strategy)).pids
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
    assert names == [f"sw {role} 0", f"sw {role} 1", "sw server 0"]


@pytest.mark.parametrize("strategy", ["parameter-server:servers=2", "parameter-server-async:servers=2"])
@pytest.mark.slow
def test_a_server_that_hangs_ends_the_run_and_is_named(strategy: str) -> None:
    endless = Request("tests.tiny:float32", strategy_of(strategy), Settings(4, None, 10**6))
    # Long enough to connect on a busy machine.
    with open_session(endless.strategy, Placement(2, "cpu", timeout_seconds=6)) as session:
        assert isinstance(session, ServedSession)

        def stop(_rank: int, _report: Report) -> None:
            os.kill(session.pids[-1], signal.SIGSTOP)

        with pytest.raises(RankFailed, match=r"^server 1 did not answer within 6 s$"):
            session.run(train_task, endless, on_report=stop)
