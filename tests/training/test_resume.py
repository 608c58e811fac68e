"""A run that was stopped, however rudely, goes on to the very bytes of one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.command import Run, Said, finish, start
from tests.training.conftest import Train

DROPOUT = "tests.training.models:dropout"


def content(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Everything in a checkpoint; the order in which the header names things is up to the library."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118 - not a dict
        return file.metadata(), tensors


def steps_in(path: Path) -> int:
    steps: int = json.loads(content(path)[0]["progress"])["steps_done"]
    return steps


CASES = [
    (kind, stop, load)
    for kind in ("tests.tiny:float32", DROPOUT)
    for stop in (1, 4, 6)
    for load in ("device", "stream")
]


@pytest.mark.parametrize(("kind", "stop", "load"), [*CASES, (DROPOUT, 6, "stream:workers=1")])
def test_stopped_and_resumed_equals_never_stopped(
    kind: str, stop: int, load: str, train: Train, tmp_path: Path
) -> None:
    """15 samples in batches of 4 end in a short one; the stops lie inside epochs, at an end and after it."""
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    reference = train(kind, samples=15, steps=10, checkpoint=whole, load=load)
    train(kind, samples=15, steps=stop, checkpoint=parts, load=load)
    resumed = train(kind, samples=15, steps=10, checkpoint=parts, load=load, resume=True)
    assert content(parts) == content(whole)
    assert (resumed.steps, resumed.loss, resumed.accuracy) == (10 - stop, reference.loss, reference.accuracy)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "momentum", "adagrad"])
def test_every_optimizer_goes_on(optimizer: str, train: Train, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    train(DROPOUT, steps=8, checkpoint=whole, optimizer=optimizer)
    train(DROPOUT, steps=3, checkpoint=parts, optimizer=optimizer)
    train(DROPOUT, steps=8, checkpoint=parts, optimizer=optimizer, resume=True)
    assert content(parts) == content(whole)


def test_saving_in_between_changes_nothing(train: Train, tmp_path: Path) -> None:
    often, seldom = tmp_path / "often.safetensors", tmp_path / "seldom.safetensors"
    train(DROPOUT, steps=10, checkpoint=often, checkpoint_every=1)
    train(DROPOUT, steps=10, checkpoint=seldom)
    assert content(often) == content(seldom)


def stopped_by(number: int, line: list[object], path: Path) -> Said:
    """A real process that is sent a signal once its first checkpoint is there."""
    process = start(*line, "--checkpoint", path, "--checkpoint-every", 50, "--steps", 10_000_000)
    try:
        while not path.exists():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"ended by itself with {process.wait(0.01)}")
        process.send_signal(number)
        return finish(process)
    finally:
        process.kill()


def both_at_the_end(scalewise: Run, line: list[object], stopped: Path, whole: Path) -> None:
    steps = steps_in(stopped) + 23
    assert scalewise(*line, "--checkpoint", stopped, "--steps", steps, "--resume").code == 0
    assert scalewise(*line, "--checkpoint", whole, "--steps", steps).code == 0
    assert content(stopped) == content(whole)
    assert list(stopped.parent.iterdir()) == [stopped]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """In a folder of its own, to see that nothing else is left there."""
    (tmp_path / "stopped").mkdir()
    return tmp_path / "stopped" / "c.safetensors"


@pytest.mark.parametrize("kind", ["tests.tiny:float32", DROPOUT])
def test_killed_and_resumed_equals_never_stopped(kind: str, scalewise: Run, stopped: Path, tmp_path: Path) -> None:
    line: list[object] = ["train", kind, "--batch", 4, "--samples", 4000, "--device-kind", "cpu"]
    assert stopped_by(signal.SIGKILL, line, stopped).code == -signal.SIGKILL
    both_at_the_end(scalewise, line, stopped, tmp_path / "whole.safetensors")


def test_ctrl_c_leaves_a_checkpoint_and_says_so(scalewise: Run, stopped: Path, tmp_path: Path) -> None:
    line: list[object] = ["train", DROPOUT, "--batch", 4, "--samples", 4000, "--device-kind", "cpu"]
    said = stopped_by(signal.SIGINT, line, stopped)
    said.refused(1, f"stopped after {steps_in(stopped)} steps", f"go on with --checkpoint {stopped} --resume")
    both_at_the_end(scalewise, line, stopped, tmp_path / "whole.safetensors")
