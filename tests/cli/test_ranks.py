"""`scalewise train` on several ranks: results, and failures of ranks."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from scalewise.launch import emulated_hosts
from tests.command import Run, finish, fork

RANKS = ("--devices", 2, "--device-kind", "cpu", "--batch", 8)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "parameter-server", "tensor"])
def test_the_document_says_where_it_ran_and_what_crossed(strategy: str, tmp_path: Path, scalewise: Run) -> None:
    trace = tmp_path / "trace.json"
    run = ("train", "tests.tiny:float32", "--strategy", strategy, *RANKS, "--epochs", 9)
    output = scalewise(*run, "--trace", trace, "--json")
    assert output.code == 0, output
    document = json.loads(output.stdout)
    assert (document["devices"], document["batch"]) == (2, 8)
    assert document["batch_per_device"] == (8 if strategy == "tensor" else 4)
    assert document["strategy"] == strategy
    assert document["epochs"] == 9
    # On a busy machine, gloo's notices of sender and receiver cross now and then: 48 bytes more in messages of a few.
    sent = document["bytes_per_step"]
    assert sent["planned"] <= sent["traced"] <= 1.1 * sent["planned"]
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1}


@pytest.mark.slow
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
    process = fork(*run)
    watched = psutil.Process(process.pid)
    processes: set[psutil.Process] = set()
    while process.poll() is None:
        try:
            processes.update(watched.children(recursive=True))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    output = finish(process)
    output.refused(1, sentence)
    assert psutil.wait_procs(processes, timeout=60)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "strategy"),
    [
        (signal.SIGINT, "mirrored"),
        (signal.SIGKILL, "mirrored"),
        (signal.SIGKILL, "parameter-server-async:servers=2"),
    ],
)
def test_ranks_end_with_the_command(number: signal.Signals, strategy: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "tiny.safetensors"
    run = ("train", "tests.tiny:float32", "--strategy", strategy, *RANKS, "--epochs", 10**6)
    process = fork(*run, "--checkpoint", checkpoint)
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(number)
    output = finish(process)
    if number == signal.SIGINT:
        output.refused(1, "stopped after", "continue with --checkpoint", "--resume")
    assert psutil.wait_procs(children, timeout=60)[1] == []


@pytest.mark.slow
@pytest.mark.skipif(emulated_hosts.obstacle() is not None, reason=emulated_hosts.obstacle() or "")
def test_emulated_hosts_send_the_same_bytes(scalewise: Run) -> None:
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
    output = scalewise(*run, "--json")
    assert output.code == 0, output
    document = json.loads(output.stdout)
    assert (document["hosts"], document["link"]) == (2, "200mbit")
    assert document["bytes_per_step"]["traced"] == document["bytes_per_step"]["planned"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--strategy", "single", "--devices", 2), ("'single' runs on one device", "mirrored")),
        (("--strategy", "mirrored", "--devices", 2, "--hosts", 2), ("--link 1gbit",)),
        (("--strategy", "mirrored", "--devices", 2, "--hosts", 2, "--link", "fast"), ("fast", "1gbit")),
        (("--strategy", "mirrored", "--devices", 2, "--slow", "7=0.5"), ("rank 7", "0 to 1")),
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
def test_impossible_combinations_are_refused(
    arguments: tuple[object, ...], parts: tuple[str, ...], scalewise: Run
) -> None:
    scalewise("train", "tests.tiny:float32", "--batch", 8, *arguments).refused(2, *parts)
