"""Tests of sessions with real ranks, and of every way in which a rank can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from scalewise.core.errors import Kind, RankFailed, UserError
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from tests.command import fork
from tests.conftest import SessionOf
from tests.launch import tasks

REPOSITORY = Path(__file__).parents[2]
is_root = sys.platform == "linux" and os.geteuid() == 0
needs_root = pytest.mark.skipif(not is_root, reason="needs root on Linux")


@contextmanager
def failing(kind: Kind, who: str) -> Iterator[None]:
    with pytest.raises(RankFailed) as raised:
        yield
    assert (raised.value.failure.kind, raised.value.failure.who) == (kind, who)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_runs_the_task_and_results_are_in_rank_order(session_of: SessionOf, ranks: int) -> None:
    session = session_of(ranks)
    places = session.run(tasks.where)
    assert [place["rank"] for place in places] == list(range(ranks))
    assert {place["world"] for place in places} == {ranks}
    assert {(place["device"], place["backend"], place["group"]) for place in places} == {("cpu", "gloo", "gloo")}
    assert session.run(tasks.total, 0.5) == [0.5 * ranks * (ranks + 1) / 2] * ranks


def test_cpu_ranks_have_one_core_and_one_thread_each(session_of: SessionOf) -> None:
    places = session_of(2).run(tasks.where)
    assert [place["threads"] for place in places] == [1, 1]
    assert [len(place["cores"]) for place in places] == [1, 1]
    if len(allowed_cores()) >= 2:
        assert places[0]["cores"] != places[1]["cores"]


def test_reports_reach_the_launcher_while_the_task_runs(session_of: SessionOf) -> None:
    reports: list[tuple[int, Any]] = []
    assert session_of(2).run(tasks.count_up, 3, on_report=lambda rank, value: reports.append((rank, value))) == [3, 3]
    for rank in (0, 1):
        assert [value for reporter, value in reports if reporter == rank] == [{"step": 0}, {"step": 1}, {"step": 2}]


def test_returned_tensors_outlive_their_rank() -> None:
    with Session(Placement(1, "cpu")) as session:
        (tensor,) = session.run(tasks.return_value, torch.arange(5.0))
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_store_is_shared(session_of: SessionOf) -> None:
    assert session_of(2).run(tasks.leave_note) == ["hello", "hello"]


def test_a_closed_session_refuses_a_task() -> None:
    session = Session(Placement(1, "cpu"))
    with session:
        session.run(tasks.nothing)
    with pytest.raises(RuntimeError, match="this session is closed"):
        session.run(tasks.nothing)


def test_an_argument_that_cannot_be_pickled_leaves_the_session_open(session_of: SessionOf) -> None:
    session = session_of(1)
    with pytest.raises(UserError, match="cannot be sent to other processes"):
        session.run(tasks.return_value, lambda: None)
    assert session_of(1).run(tasks.total, 2.0) == [2.0]


@pytest.mark.parametrize(
    ("how", "kind", "cause"),
    [
        ("raise", "error", "ValueError: learning rate is not a number"),
        ("exit", "error", "SystemExit: 3"),
        ("oom", "oom", "OutOfMemoryError: CUDA out of memory, tried to allocate 20.00 GiB"),
        ("kill", "died", "was killed (signal 9)"),
        ("quit", "died", "ended without a result"),
        ("hang", "hang", "did not answer within 1.5 s"),
        ("stop", "hang", "did not answer within 1.5 s"),
    ],
)
@pytest.mark.slow
def test_the_rank_that_failed_is_named_and_all_ranks_end(how: str, kind: str, cause: str) -> None:
    with Session(Placement(3, "cpu", timeout_seconds=1.5)) as session:
        ranks = [psutil.Process(place["pid"]) for place in session.run(tasks.where)]
        with pytest.raises(RankFailed) as failed:
            session.run(tasks.fail_on, 1, how)
        assert not session.is_open
    failure = failed.value.failure
    assert (failure.kind, failure.rank, failure.who, failure.cause) == (kind, 1, "rank 1", cause)
    assert psutil.wait_procs(ranks, timeout=60)[1] == []


def test_the_error_of_a_rank_contains_its_traceback() -> None:
    with Session(Placement(2, "cpu")) as session, pytest.raises(RankFailed) as failed:
        session.run(tasks.fail_on, 0, "raise")
    assert "in fail_on" in failed.value.details
    assert failed.value.details.endswith("ValueError: learning rate is not a number\nsecond line\n")


@pytest.mark.slow
def test_the_stack_of_a_hung_rank_is_shown() -> None:
    with Session(Placement(2, "cpu", timeout_seconds=1.5)) as session, pytest.raises(RankFailed) as failed:
        session.run(tasks.fail_idle, 1, "hang")
    assert "in _hang" in failed.value.details


@pytest.mark.slow
def test_a_rank_that_never_sends_is_named() -> None:
    with Session(Placement(2, "cpu", timeout_seconds=1.5)) as session, failing("hang", "rank 1"):
        session.run(tasks.fail_sender, 1, "hang")


def test_a_rank_that_dies_after_its_peers_have_finished_is_named() -> None:
    with Session(Placement(2, "cpu")) as session, failing("died", "rank 1"):
        session.run(tasks.fail_idle, 1, "kill")


def test_a_user_error_of_a_rank_is_raised() -> None:
    with (
        Session(Placement(2, "cpu")) as session,
        pytest.raises(UserError, match=r"^batch cannot be 0; valid: 1 or more$"),
    ):
        session.run(tasks.fail_on, 1, "user")


def test_a_rank_killed_between_tasks_fails_the_next_one() -> None:
    with Session(Placement(2, "cpu")) as session:
        victim = psutil.Process(session.run(tasks.where)[1]["pid"])
        victim.kill()
        victim.wait(60)
        with failing("died", "rank 1"):
            session.run(tasks.total, 1.0)


def test_an_error_of_the_launcher_ends_the_ranks() -> None:
    def refuse(rank: int, value: object) -> None:
        raise LookupError(f"{rank} reported {value}")

    with Session(Placement(2, "cpu")) as session:
        ranks = [psutil.Process(place["pid"]) for place in session.run(tasks.where)]
        with pytest.raises(LookupError):
            session.run(tasks.count_up, 1, on_report=refuse)
    assert psutil.wait_procs(ranks, timeout=60)[1] == []


def test_nothing_listens_beyond_loopback() -> None:
    with Session(Placement(2, "cpu")) as session:
        pids = {os.getpid(), *(place["pid"] for place in session.run(tasks.where))}
        session.run(tasks.total, 1.0)
        listening = [
            (connection.laddr.ip, connection.pid)
            for connection in psutil.net_connections("inet")
            if connection.laddr and connection.status == psutil.CONN_LISTEN and connection.pid in pids
        ]
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert {pid for _, pid in listening} == pids - {os.getpid()}  # gloo; the launcher serves its store without a port


@needs_root
def test_ranks_on_emulated_hosts_have_separate_namespaces() -> None:
    launcher_namespace = Path("/proc/self/ns/net").readlink().name
    with Session(Placement(3, "cpu", hosts=2, link="1gbit")) as session:
        places = session.run(tasks.where)
        assert session.run(tasks.total, 1.0) == [6.0] * 3
    assert [place["host"] for place in places] == [0, 0, 1]
    assert places[0]["namespace"] == places[1]["namespace"] != places[2]["namespace"]
    assert launcher_namespace not in {place["namespace"] for place in places}


@needs_root
def test_a_rank_killed_on_an_emulated_host_is_named() -> None:
    with Session(Placement(2, "cpu", hosts=2, link="1gbit")) as session, failing("died", "rank 1"):
        session.run(tasks.fail_on, 1, "kill")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_all_processes_and_files_are_removed_when_the_launcher_ends(
    number: signal.Signals, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    compiler_cache = tmp_path_factory.mktemp("torch-cache")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.launcher", *(["2", "2", "1=0.5"] if is_root else ["2"])],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(compiler_cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    ranks = {int(launcher.stdout.readline()) for _ in range(2)}
    others = psutil.Process(launcher.pid).children(recursive=True)
    assert ranks < {process.pid for process in others}
    if number == signal.SIGINT:  # a terminal sends Ctrl-C to all processes in the foreground
        os.killpg(launcher.pid, number)
    else:
        launcher.send_signal(number)
    errors = launcher.communicate(timeout=120)[1]
    assert psutil.wait_procs(others, timeout=120)[1] == []
    assert list(tmp_path.iterdir()) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"*/scalewise-{launcher.pid}-*"))
    # Output of ranks goes to stderr, because the launcher writes its result to stdout.
    assert "output of rank 0" in errors
    assert errors.count("Traceback") == (number == signal.SIGINT)


@pytest.mark.parametrize("end", ["interrupted", "launcher killed", "rank killed"])
@pytest.mark.slow
def test_data_loaders_end_with_their_rank(end: str, tmp_path: Path) -> None:
    count = 2 if end == "rank killed" else 1
    launcher = fork(
        *(count, 1, "", "load_and_hang"),
        module="tests.launch.launcher",
        env_more={"TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    ranks = [psutil.Process(int(launcher.stdout.readline())) for _ in range(count)]
    others = psutil.Process(launcher.pid).children(recursive=True)
    try:
        loaders = [loader for rank in ranks for server in rank.children() for loader in server.children()]
        assert len(loaders) == count
        if end == "interrupted":
            os.killpg(launcher.pid, signal.SIGINT)
        else:
            (launcher if end == "launcher killed" else ranks[-1]).kill()
        assert psutil.wait_procs(others, timeout=120)[1] == []
        assert launcher.wait(120) != 0
        assert [path for pattern in ("pymp-*", "pytorch-*") for path in tmp_path.glob(pattern)] == []
    finally:
        launcher.kill()
        for process in others:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        launcher.communicate()
