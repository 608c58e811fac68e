"""`train` on several ranks as a user sees it: results, and every way in which ranks can fail."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from scalewise.session import hosts
from tests.command import Run, finish, start

RANKS = ("--devices", 2, "--device-kind", "cpu", "--batch", 8)


@pytest.mark.parametrize("strategy", ["mirrored", "parameter-server", "tensor"])
def test_the_document_says_where_it_ran_and_what_crossed(strategy: str, tmp_path: Path, scalewise: Run) -> None:
    trace = tmp_path / "trace.json"
    run = ("train", "tests.tiny:float32", "--strategy", strategy, *RANKS, "--epochs", 9)
    said = scalewise(*run, "--trace", trace, "--json")
    assert said.code == 0, said
    document = json.loads(said.stdout)
    assert (document["devices"], document["batch"]) == (2, 8)
    assert document["batch_per_device"] == (8 if strategy == "tensor" else 4)
    assert document["strategy"] == strategy
    assert document["epochs"] == 9
    assert document["bytes_per_step"]["traced"] == document["bytes_per_step"]["planned"]
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1}


@pytest.mark.parametrize(
    ("workload", "strategy", "sentence"),
    [
        ("killed", "mirrored", "rank 1 was killed (signal 9)"),
        ("raises", "mirrored", "ValueError: a bug in the loss"),
        ("hangs", "mirrored", "rank 1 did not answer within 2 s"),
        ("raises", "parameter-server-async", "ValueError: a bug in the loss"),
    ],
)
def test_a_rank_that_fails_is_named_and_nothing_is_left(workload: str, strategy: str, sentence: str) -> None:
    run = ("train", f"tests.tiny_ranks:{workload}", "--strategy", strategy, *RANKS, "--steps", 10**5, "--timeout", 2)
    process = start(*run)
    watched = psutil.Process(process.pid)
    seen: set[psutil.Process] = set()
    while process.poll() is None:
        try:
            seen.update(watched.children(recursive=True))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    said = finish(process)
    said.refused(1, sentence)
    assert psutil.wait_procs(seen, timeout=10)[1] == []


@pytest.mark.parametrize(
    ("number", "strategy"),
    [
        (signal.SIGINT, "mirrored"),
        (signal.SIGKILL, "mirrored"),
        (signal.SIGKILL, "parameter-server-async:servers=2"),
    ],
)
def test_when_the_command_ends_so_do_its_ranks(number: signal.Signals, strategy: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "tiny.safetensors"
    run = ("train", "tests.tiny:float32", "--strategy", strategy, *RANKS, "--epochs", 10**6)
    process = start(*run, "--checkpoint", checkpoint)
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(number)
    said = finish(process, 20)
    if number == signal.SIGINT:
        said.refused(1, "interrupted; go on from the last checkpoint", "--resume")
    assert psutil.wait_procs(children, timeout=10)[1] == []


@pytest.mark.skipif(hosts.obstacle() is not None, reason=hosts.obstacle() or "")
def test_rehearsed_hosts_carry_the_same_bytes(scalewise: Run) -> None:
    run = (
        "train",
        "tests.tiny:float32",
        "--strategy",
        "ring",
        *RANKS,
        "--hosts",
        2,
        "--link",
        "200mbit",
        "--epochs",
        4,
    )
    said = scalewise(*run, "--json")
    assert said.code == 0, said
    document = json.loads(said.stdout)
    assert (document["hosts"], document["link"]) == (2, "200mbit")
    assert document["bytes_per_step"]["traced"] == document["bytes_per_step"]["planned"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--strategy", "single", "--devices", 2), ("'single' runs on one device", "mirrored")),
        (("--strategy", "mirrored", "--devices", 2, "--hosts", 2), ("--link 1gbit",)),
        (("--strategy", "mirrored", "--devices", 2, "--hosts", 2, "--link", "fast"), ("fast", "1gbit")),
        (("--strategy", "mirrored", "--devices", 2, "--slow", "7=0.5"), ("no rank 7", "0 to 1")),
        (("--strategy", "mirrored", "--devices", 2, "--execution", "graph"), ("cannot be captured",)),
        (("--strategy", "data-parallel", "--devices", 2, "--accumulate", 2), ("cannot accumulate",)),
        (
            (
                "--strategy",
                "mirrored:compress=powersgd,bucket_MB=3",
            ),
            ("one bucket",),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    arguments: tuple[object, ...], parts: tuple[str, ...], scalewise: Run
) -> None:
    scalewise("train", "tests.tiny:float32", "--batch", 8, *arguments).refused(2, *parts)
