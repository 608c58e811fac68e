"""A stopped and resumed run writes the same checkpoint, byte for byte, as a run that was never stopped."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.command import Output, Run, finish, fork
from tests.training.conftest import Train

DROPOUT = "tests.training.models:dropout"


def content(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Metadata and tensors of a checkpoint, independent of their order in the file."""
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
    """An epoch has 4 steps (15 samples, batch 4): the run stops inside an epoch, at its end and after it."""
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    reference = train(kind, samples=15, steps=10, checkpoint=whole, load=load)
    train(kind, samples=15, steps=stop, checkpoint=parts, load=load)
    resumed = train(kind, samples=15, steps=10, checkpoint=parts, load=load, resume=True)
    assert content(parts) == content(whole)
    assert (resumed.steps, resumed.loss, resumed.accuracy) == (10 - stop, reference.loss, reference.accuracy)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "momentum", "adagrad"])
def test_every_optimizer_resumes_exactly(optimizer: str, train: Train, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    train(DROPOUT, steps=8, checkpoint=whole, optimizer=optimizer)
    train(DROPOUT, steps=3, checkpoint=parts, optimizer=optimizer)
    train(DROPOUT, steps=8, checkpoint=parts, optimizer=optimizer, resume=True)
    assert content(parts) == content(whole)


def test_saving_more_often_does_not_change_the_run(train: Train, tmp_path: Path) -> None:
    often, seldom = tmp_path / "often.safetensors", tmp_path / "seldom.safetensors"
    train(DROPOUT, steps=10, checkpoint=often, checkpoint_every=1)
    train(DROPOUT, steps=10, checkpoint=seldom)
    assert content(often) == content(seldom)


def stopped_by(number: int, line: list[object], path: Path) -> Output:
    """Fork a process and send it a signal after its first checkpoint."""
    process = fork(*line, "--checkpoint", path, "--checkpoint-every", 50, "--steps", 10_000_000)
    try:
        while not path.exists():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the process ended by itself with {process.wait(0.01)}")
        process.send_signal(number)
        return finish(process)
    finally:
        process.kill()


def assert_equal_when_finished(scalewise: Run, line: list[object], stopped: Path, whole: Path) -> None:
    steps = steps_in(stopped) + 23
    assert scalewise(*line, "--checkpoint", stopped, "--steps", steps, "--resume").code == 0
    assert scalewise(*line, "--checkpoint", whole, "--steps", steps).code == 0
    assert content(stopped) == content(whole)
    assert list(stopped.parent.iterdir()) == [stopped]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Path of a checkpoint in its own folder, so that tests notice leftover files."""
    (tmp_path / "stopped").mkdir()
    return tmp_path / "stopped" / "c.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tests.tiny:float32", DROPOUT])
def test_killed_and_resumed_equals_never_stopped(kind: str, scalewise: Run, stopped: Path, tmp_path: Path) -> None:
    line: list[object] = ["train", kind, "--batch", 4, "--samples", 4000, "--device-kind", "cpu"]
    assert stopped_by(signal.SIGKILL, line, stopped).code == -signal.SIGKILL
    assert_equal_when_finished(scalewise, line, stopped, tmp_path / "whole.safetensors")


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_prints_how_to_resume(scalewise: Run, stopped: Path, tmp_path: Path) -> None:
    line: list[object] = ["train", DROPOUT, "--batch", 4, "--samples", 4000, "--device-kind", "cpu"]
    output = stopped_by(signal.SIGINT, line, stopped)
    output.refused(1, f"stopped after {steps_in(stopped)} steps", f"continue with --checkpoint {stopped} --resume")
    assert_equal_when_finished(scalewise, line, stopped, tmp_path / "whole.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "ring", "parameter-server:servers=2"])
def test_three_ranks_add_gradients_in_the_same_order_after_a_resume(
    strategy: str, scalewise: Run, tmp_path: Path
) -> None:
    """The order is that of DDP's buckets, of the ring, and of the workers' numbers at a parameter server."""
    line = ["train", "synthetic:parameters=200000", "--strategy", strategy, "--devices", 3, "--device-kind", "cpu"]
    line += ["--samples", 48, "--batch", 12]
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    assert scalewise(*line, "--checkpoint", whole, "--steps", 8).code == 0
    assert scalewise(*line, "--checkpoint", parts, "--steps", 4).code == 0
    assert scalewise(*line, "--checkpoint", parts, "--steps", 8, "--resume").code == 0
    assert content(parts) == content(whole)
