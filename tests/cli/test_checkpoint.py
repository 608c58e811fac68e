"""Checkpoints on the command line: not overwritten unless requested, not shared, finished runs stay finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import safe_open

import scalewise as package
from tests.command import Run, finish, fork

LINE = ("train", "tests.tiny:float32", "--device-kind", "cpu", "--batch", 4)
LOCK = ".c.safetensors.lock"


@pytest.fixture
def checkpoint(folder: Path) -> Path:
    return folder / "c.safetensors"


@pytest.fixture
def running(checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that trains until it is ended, and wait for its checkpoint."""
    process = fork(*LINE, "--steps", 10_000_000, "--checkpoint", checkpoint, "--checkpoint-every", 50)
    try:
        while not checkpoint.exists():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"ended by itself with {process.wait(0.01)}")
        yield process
    finally:
        process.kill()
        process.communicate()


def steps_in(path: Path) -> int:
    with safe_open(path, framework="numpy") as file:
        steps: int = json.loads(file.metadata()["progress"])["steps_done"]
    return steps


def test_an_existing_checkpoint_is_refused(checkpoint: Path, scalewise: Run) -> None:
    assert scalewise(*LINE, "--steps", 3, "--checkpoint", checkpoint).code == 0
    before = checkpoint.read_bytes()
    scalewise(*LINE, "--steps", 5, "--checkpoint", checkpoint).refused(2, str(checkpoint), "--resume", "--overwrite")
    assert checkpoint.read_bytes() == before
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_the_python_function_refuses_it_too(checkpoint: Path) -> None:
    checkpoint.write_text("something else")
    with pytest.raises(package.UserError, match="--overwrite"):
        package.train("tests.tiny:float32", batch=4, steps=1, checkpoint=str(checkpoint))
    assert checkpoint.read_text() == "something else"
    assert package.train("tests.tiny:float32", batch=4, steps=1, checkpoint=checkpoint, overwrite=True).steps == 1
    assert steps_in(checkpoint) == 1


def test_overwrite_starts_anew(checkpoint: Path, scalewise: Run) -> None:
    assert scalewise(*LINE, "--steps", 3, "--checkpoint", checkpoint).code == 0
    assert scalewise(*LINE, "--steps", 2, "--checkpoint", checkpoint, "--overwrite").code == 0
    assert steps_in(checkpoint) == 2


@pytest.mark.parametrize("strategy", ["single", "mirrored", "parameter-server", "parameter-server-async"])
@pytest.mark.parametrize("steps", [3, 2])
def test_a_finished_run_is_already_finished(strategy: str, steps: int, checkpoint: Path, scalewise: Run) -> None:
    """No rank is started for a finished run, with any strategy."""
    assert scalewise(*LINE, "--steps", 3, "--checkpoint", checkpoint).code == 0
    before = checkpoint.read_bytes()
    again = (*LINE, "--steps", steps, "--checkpoint", checkpoint, "--resume", "--strategy", strategy)
    output = scalewise(*again)
    assert (output.code, output.stderr) == (0, "")
    assert "already finished" in output.stdout
    output = scalewise(*again, "--json")
    document = json.loads(output.stdout)
    assert output.code == 0
    assert document["already_finished"] is True
    assert (document["workload"], document["strategy"]) == ("tests.tiny:float32", strategy)
    assert (document["steps"], document["epochs"], document["epoch_seconds"]) == (0, 0, [])
    assert (document["loss"], document["accuracy"], document["bytes_per_step"]) == (None, None, None)
    assert document["parameters"] == 6 * 5 + 5 + 5 * 3 + 3
    assert document["checkpoint"] == str(checkpoint)
    assert any(f"step 3 of {steps}" in note for note in document["notes"])
    assert checkpoint.read_bytes() == before


def test_a_run_with_steps_left_is_not_finished(checkpoint: Path, scalewise: Run) -> None:
    assert scalewise(*LINE, "--steps", 3, "--checkpoint", checkpoint).code == 0
    document = json.loads(scalewise(*LINE, "--steps", 4, "--checkpoint", checkpoint, "--resume", "--json").stdout)
    assert (document["already_finished"], document["steps"]) == (False, 1)


def test_a_finished_checkpoint_of_another_run_is_refused(checkpoint: Path, scalewise: Run) -> None:
    assert scalewise(*LINE, "--steps", 3, "--checkpoint", checkpoint).code == 0
    resumed = (*LINE, "--steps", 3, "--checkpoint", checkpoint, "--resume")
    scalewise(*resumed, "--seed", 1).refused(2, "belongs to another run")
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:-10] + bytes([content[-10] ^ 1]) + content[-9:])
    scalewise(*resumed).refused(2, f"checkpoint {checkpoint} is damaged")


@pytest.mark.slow
def test_two_processes_do_not_share_a_checkpoint(
    running: subprocess.Popen[str], checkpoint: Path, scalewise: Run
) -> None:
    again = (*LINE, "--steps", 1, "--checkpoint", checkpoint)
    for options in ([], ["--resume"], ["--overwrite"]):
        scalewise(*again, *options).refused(2, f"process {running.pid} is training with checkpoint {checkpoint}")
    assert running.poll() is None
    assert (checkpoint.parent / LOCK).exists()


@pytest.mark.slow
def test_a_killed_process_leaves_no_lock(running: subprocess.Popen[str], checkpoint: Path, scalewise: Run) -> None:
    running.send_signal(signal.SIGKILL)
    assert finish(running).code == -signal.SIGKILL
    for temporary in checkpoint.parent.glob(".*.part"):
        os.utime(temporary, (0, 0))  # files of the last second are kept, because their process may not have locked them
    steps = steps_in(checkpoint) + 2
    assert scalewise(*LINE, "--steps", steps, "--checkpoint", checkpoint, "--resume").code == 0
    assert steps_in(checkpoint) == steps
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_infinite_weights_are_not_saved(checkpoint: Path, scalewise: Run) -> None:
    """The last update is also checked, although no loss is computed after it."""
    line = (*LINE, "--steps", 1, "--optimizer", "sgd", "--checkpoint", checkpoint)
    scalewise(*line, "--learning-rate", 1e300).refused(1, "infinite or NaN by step 1")
    assert not checkpoint.exists()
