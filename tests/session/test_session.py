"""Sessions: tasks on real ranks, and every way in which one can end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from scalewise.errors import UserError
from scalewise.session.cores import allowed_cores
from scalewise.session.failure import RankFailed
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from tests.conftest import SessionOf
from tests.session import tasks

REPOSITORY = Path(__file__).parents[2]
is_root = sys.platform == "linux" and os.geteuid() == 0
needs_root = pytest.mark.skipif(not is_root, reason="needs root on Linux")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_runs_the_task_and_results_come_in_order(session_of: SessionOf, ranks: int) -> None:
    session = session_of(ranks)
    seen = session.run(tasks.where)
    assert [there["rank"] for there in seen] == list(range(ranks))
    assert {there["world"] for there in seen} == {ranks}
    assert {(there["device"], there["backend"], there["group"]) for there in seen} == {("cpu", "gloo", "gloo")}
    assert session.run(tasks.total, 0.5) == [0.5 * ranks * (ranks + 1) / 2] * ranks


def test_cpu_ranks_have_one_core_and_one_thread_each(session_of: SessionOf) -> None:
    seen = session_of(2).run(tasks.where)
    assert [there["threads"] for there in seen] == [1, 1]
    assert [len(there["cores"]) for there in seen] == [1, 1]
    if len(allowed_cores()) >= 2:
        assert seen[0]["cores"] != seen[1]["cores"]


def test_reports_reach_the_launcher_while_the_task_runs(session_of: SessionOf) -> None:
    told: list[tuple[int, Any]] = []
    assert session_of(2).run(tasks.count_up, 3, on_report=lambda rank, what: told.append((rank, what))) == [3, 3]
    for rank in (0, 1):
        assert [what for who, what in told if who == rank] == [{"step": 0}, {"step": 1}, {"step": 2}]


def test_tensors_outlive_the_rank_that_sent_them() -> None:
    with Session(Placement(1, "cpu")) as session:
        (tensor,) = session.run(tasks.give, torch.arange(5.0))
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_store_is_shared(session_of: SessionOf) -> None:
    assert session_of(2).run(tasks.leave_note) == ["hello", "hello"]


def test_a_closed_session_takes_no_task() -> None:
    session = Session(Placement(1, "cpu"))
    with session:
        session.run(tasks.nothing)
    with pytest.raises(RuntimeError, match="this session is closed"):
        session.run(tasks.nothing)


def test_a_task_that_cannot_travel_is_refused_and_the_session_goes_on(session_of: SessionOf) -> None:
    session = session_of(1)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        session.run(tasks.give, lambda: None)
    assert session_of(1).run(tasks.total, 2.0) == [2.0]


@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [
        ("raise", "error", "ValueError: learning rate is not a number"),
        ("exit", "error", "SystemExit: 3"),
        ("oom", "oom", "rank 1 ran out of memory: OutOfMemoryError: CUDA out of memory, tried to allocate 20.00 GiB"),
        ("kill", "died", "rank 1 was killed (signal 9)"),
        ("quit", "died", "rank 1 ended without an answer"),
        ("hang", "hang", "rank 1 did not answer within 1.5 s"),
        ("stop", "hang", "rank 1 did not answer within 1.5 s"),
    ],
)
def test_the_rank_that_failed_is_named_and_all_ranks_end(how: str, kind: str, sentence: str) -> None:
    with Session(Placement(3, "cpu", timeout_seconds=1.5)) as session:
        ranks = [psutil.Process(there["pid"]) for there in session.run(tasks.where)]
        with pytest.raises(RankFailed) as failed:
            session.run(tasks.fail_on, 1, how)
        assert not session.is_open
    assert (failed.value.kind, failed.value.rank) == (kind, 1)
    assert str(failed.value).startswith("rank 1 ")
    assert sentence in str(failed.value)
    assert psutil.wait_procs(ranks, timeout=5)[1] == []


def test_the_error_of_a_rank_comes_with_its_traceback() -> None:
    with Session(Placement(2, "cpu")) as session, pytest.raises(RankFailed) as failed:
        session.run(tasks.fail_on, 0, "raise")
    assert "in fail_on" in failed.value.details
    assert failed.value.details.endswith("ValueError: learning rate is not a number\nsecond line\n")


def test_a_rank_that_hangs_shows_where() -> None:
    with Session(Placement(2, "cpu", timeout_seconds=1.5)) as session, pytest.raises(RankFailed) as failed:
        session.run(tasks.fail_idle, 1, "hang")
    assert "in _hang" in failed.value.details


def test_a_rank_that_never_sends_is_named() -> None:
    with (
        Session(Placement(2, "cpu", timeout_seconds=1.5)) as session,
        pytest.raises(RankFailed, match=r"^rank 1 did not answer within 1.5 s$"),
    ):
        session.run(tasks.fail_sender, 1, "hang")


def test_a_rank_that_dies_after_its_peers_have_finished_is_named() -> None:
    with Session(Placement(2, "cpu")) as session, pytest.raises(RankFailed, match=r"^rank 1 was killed \(signal 9\)$"):
        session.run(tasks.fail_idle, 1, "kill")


def test_bad_input_found_by_a_rank_is_a_user_error() -> None:
    with (
        Session(Placement(2, "cpu")) as session,
        pytest.raises(UserError, match=r"^batch cannot be 0; valid: 1 or more$"),
    ):
        session.run(tasks.fail_on, 1, "user")


def test_a_rank_killed_between_tasks_fails_the_next_one() -> None:
    with Session(Placement(2, "cpu")) as session:
        victim = psutil.Process(session.run(tasks.where)[1]["pid"])
        victim.kill()
        victim.wait(5)
        with pytest.raises(RankFailed, match=r"^rank 1 was killed \(signal 9\)$"):
            session.run(tasks.total, 1.0)


def test_an_error_of_the_launcher_ends_the_ranks() -> None:
    def refuse(rank: int, told: object) -> None:
        raise LookupError(f"{rank} told {told}")

    with Session(Placement(2, "cpu")) as session:
        ranks = [psutil.Process(there["pid"]) for there in session.run(tasks.where)]
        with pytest.raises(LookupError):
            session.run(tasks.count_up, 1, on_report=refuse)
    assert psutil.wait_procs(ranks, timeout=5)[1] == []


def test_nothing_listens_beyond_loopback() -> None:
    with Session(Placement(2, "cpu")) as session:
        pids = {os.getpid(), *(there["pid"] for there in session.run(tasks.where))}
        session.run(tasks.total, 1.0)
        listening = [
            (connection.laddr.ip, connection.pid)
            for connection in psutil.net_connections("inet")
            if connection.laddr and connection.status == psutil.CONN_LISTEN and connection.pid in pids
        ]
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert {pid for _, pid in listening} == pids


@needs_root
def test_ranks_on_rehearsed_hosts_live_in_namespaces_of_their_own() -> None:
    ours = Path("/proc/self/ns/net").readlink().name
    with Session(Placement(3, "cpu", hosts=2, link="1gbit")) as session:
        seen = session.run(tasks.where)
        assert session.run(tasks.total, 1.0) == [6.0] * 3
    assert [there["host"] for there in seen] == [0, 0, 1]
    assert seen[0]["namespace"] == seen[1]["namespace"] != seen[2]["namespace"]
    assert ours not in {there["namespace"] for there in seen}


@needs_root
def test_a_rank_killed_on_a_rehearsed_host_is_named() -> None:
    with (
        Session(Placement(2, "cpu", hosts=2, link="1gbit")) as session,
        pytest.raises(RankFailed, match=r"^rank 1 was killed"),
    ):
        session.run(tasks.fail_on, 1, "kill")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_when_the_launcher_ends_everything_does(
    number: signal.Signals, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("torch-cache")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tests.session.launcher", *(["2", "2", "1=0.5"] if is_root else ["2"])],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(elsewhere)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    ranks = {int(launcher.stdout.readline()) for _ in range(2)}
    others = psutil.Process(launcher.pid).children(recursive=True)
    assert ranks < {process.pid for process in others}
    if number == signal.SIGINT:  # a terminal sends Ctrl-C to everyone in the foreground
        os.killpg(launcher.pid, number)
    else:
        launcher.send_signal(number)
    errors = launcher.communicate(timeout=10)[1]
    assert psutil.wait_procs(others, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"*/scalewise-{launcher.pid}-*"))
    # What ranks print is a log, and not the launcher's answer on stdout.
    assert "a remark of rank 0" in errors
    assert errors.count("Traceback") == (number == signal.SIGINT)


@pytest.mark.parametrize("end", ["interrupted", "launcher killed", "rank killed"])
def test_loaders_of_data_end_with_their_rank(end: str, tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tests.session.launcher", "2", "1", "", "load_and_hang"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    ranks = [psutil.Process(int(launcher.stdout.readline())) for _ in range(2)]
    others = psutil.Process(launcher.pid).children(recursive=True)
    try:
        loaders = [loader for rank in ranks for server in rank.children() for loader in server.children()]
        assert len(loaders) == 2
        if end == "interrupted":
            os.killpg(launcher.pid, signal.SIGINT)
        else:
            (launcher if end == "launcher killed" else ranks[1]).kill()
        assert psutil.wait_procs(others, timeout=60)[1] == []
        assert launcher.wait(60) != 0
        assert list(tmp_path.glob("pymp-*")) == []
    finally:
        launcher.kill()
        for process in others:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        launcher.communicate()
