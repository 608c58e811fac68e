"""`--on slurm` on a real Slurm with two nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.clusters.runs import (
    STRATEGIES,
    TRAINING,
    WORKLOAD,
    assert_nothing_left,
    assert_on_both_hosts,
    assert_same_weights,
    cells,
    read_until,
    train_here,
)
from tests.clusters.slurm_cluster import SlurmCluster, missing_tools, slurm_cluster

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=f"needs {', '.join(missing_tools())}")
ON = ("--on", "slurm:partition=cpu,nodes=2,devices_per_node=2,time=10")
LONG = ("--samples", "96", "--steps", "800", "--batch", "8", "--device-kind", "cpu", "--optimizer", "sgd")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_equal_those_of_one_device(slurm: SlurmCluster, single: Path, strategy: str, tmp_path: Path) -> None:
    command = ("train", WORKLOAD, *TRAINING, "--strategy", strategy, "--checkpoint", "trained.safetensors", "--json")
    output, messages = slurm.start_scalewise(*command, *ON, folder=tmp_path).communicate(timeout=300)
    assert "slurm job" in messages
    assert output, messages
    assert_on_both_hosts(json.loads(output), STRATEGIES[strategy])
    assert_same_weights(single, tmp_path / "trained.safetensors")
    assert_nothing_left(tmp_path)


def test_a_requeued_training_ends_with_the_weights_of_an_uninterrupted_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    expected = train_here(tmp_path / "one", *LONG, "--strategy", "mirrored", "--devices", "4")
    command = ("train", WORKLOAD, *LONG, "--strategy", "mirrored", "--checkpoint", "trained.safetensors")
    process = slurm.start_scalewise(*command, "--checkpoint-every", "20", "--json", *ON, folder=tmp_path)
    job = read_until(process, r"slurm job (\d+) submitted")[1]
    deadline = monotonic() + 120
    while not (tmp_path / "trained.safetensors").exists():
        assert monotonic() < deadline
        assert process.poll() is None
    assert not slurm.run("scontrol", "requeue", job)
    output, messages = process.communicate(timeout=300)
    assert process.returncode == 0, messages
    [note] = [note for note in json.loads(output)["notes"] if note.startswith("resumed at step")]
    assert 0 < int(note.split()[3].rstrip(",")) < 800
    assert_same_weights(expected, tmp_path / "trained.safetensors", exactly=True)


def test_a_sweep_survives_the_loss_of_a_node_and_is_resumed(slurm: SlurmCluster, tmp_path: Path) -> None:
    grid = ("--samples", "96", "--device-kind", "cpu", "--budget", "3", "--batch", "4,8,12,16", "--devices", "1,2,4")
    command = ("measure", WORKLOAD, *grid, "--strategy", "single", "--strategy", "mirrored", "--out", "sweep")
    process = slurm.start_scalewise(*command, *ON, folder=tmp_path)
    read_until(process, "cpu devices?, batch.*per step")
    slurm.kill_node("node2")
    _, messages = process.communicate(timeout=300)
    assert process.returncode == 1, messages
    measured = cells(tmp_path / "sweep")
    failed = [cell for cell in measured if cell["status"] == "failed"]
    assert failed
    assert all(cell["devices"] == 4 and "node2" in cell["reason"] for cell in failed)
    assert {cell["status"] for cell in measured if cell["devices"] < 4} == {"ok"}
    slurm.start_node("node2")
    slurm.wait_for("2 idle", "sinfo", "--noheader", "--format", "%D %t", seconds=120)
    _, messages = slurm.start_scalewise(*command, "--resume", *ON, folder=tmp_path).communicate(timeout=300)
    latest = {(cell["strategy"], cell["devices"], cell["batch"]): cell["status"] for cell in cells(tmp_path / "sweep")}
    assert set(latest.values()) == {"ok"}, messages
    assert len(latest) == 16
    assert_nothing_left(tmp_path)


def test_interrupting_cancels_the_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    process = slurm.start_scalewise("train", WORKLOAD, *LONG, "--strategy", "mirrored", *ON, folder=tmp_path)
    job = read_until(process, r"slurm job (\d+): RUNNING")[1]
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    assert f"interrupted; slurm job {job} was cancelled" in messages
    assert process.returncode == 1
    slurm.wait_for("2 idle", "sinfo", "--noheader", "--format", "%D %t")
    assert_nothing_left(tmp_path)
