"""`--on ray` on a real Ray cluster of two nodes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.clusters.ray_cluster import RayCluster, ray_cluster
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

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
LONG = ("--samples", "96", "--steps", "100000", "--batch", "8", "--device-kind", "cpu")


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    # Paths of Ray's sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    try:
        with ray_cluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(tmp_path_factory.mktemp("single"))


def on(cluster: RayCluster) -> tuple[str, str]:
    return "--on", f"ray:address={cluster.address},nodes=2,devices_per_node=2"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_equal_those_of_one_device(ray: RayCluster, single: Path, strategy: str, tmp_path: Path) -> None:
    command = ("train", WORKLOAD, *TRAINING, "--strategy", strategy, "--checkpoint", "trained.safetensors", "--json")
    output, messages = ray.start_scalewise(*command, *on(ray), folder=tmp_path).communicate(timeout=400)
    assert output, messages
    assert_on_both_hosts(json.loads(output), STRATEGIES[strategy])
    assert_same_weights(single, tmp_path / "trained.safetensors")


def test_a_sweep_is_written_to_the_folder(ray: RayCluster, tmp_path: Path) -> None:
    grid = ("--samples", "96", "--device-kind", "cpu", "--budget", "1", "--batch", "8", "--devices", "1,2,4")
    command = ("measure", WORKLOAD, *grid, "--strategy", "single", "--strategy", "mirrored", "--out", "sweep")
    process = ray.start_scalewise(*command, *on(ray), folder=tmp_path)
    output, messages = process.communicate(timeout=400)
    assert process.returncode == 0, messages
    assert "4 cells on cpu devices, in sweep" in output
    measured = {(cell["strategy"], cell["devices"], cell["hosts"]) for cell in cells(tmp_path / "sweep")}
    assert measured == {("single", 1, 1), ("mirrored", 1, 1), ("mirrored", 2, 1), ("mirrored", 4, 2)}


def test_interrupting_ends_the_ranks(ray: RayCluster, tmp_path: Path) -> None:
    command = ("train", WORKLOAD, *LONG, "--strategy", "mirrored", "--checkpoint", "a.safetensors")
    process = ray.start_scalewise(*command, "--checkpoint-every", "20", *on(ray), folder=tmp_path)
    read_until(process, "devices requested")
    wait_for_file(tmp_path / "a.safetensors")
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=120)
    assert "interrupted; the ranks on the Ray cluster were ended; continue with --resume" in messages
    assert process.returncode == 1
    assert_nothing_left(tmp_path)


def wait_for_file(file: Path, seconds: float = 300) -> None:
    deadline = monotonic() + seconds
    while not file.exists():
        assert monotonic() < deadline, f"no {file}"
        sleep(0.1)


def test_the_loss_of_a_node_resumes_the_training(ray: RayCluster, tmp_path: Path) -> None:
    steps = ("--samples", "96", "--steps", "600", "--batch", "8", "--device-kind", "cpu", "--optimizer", "sgd")
    (tmp_path / "one").mkdir()
    expected = train_here(tmp_path / "one", *steps, "--strategy", "mirrored", "--devices", "4")
    command = ("train", WORKLOAD, *steps, "--strategy", "mirrored", "--checkpoint", "a.safetensors", "--json")
    process = ray.start_scalewise(*command, "--checkpoint-every", "20", *on(ray), folder=tmp_path)
    wait_for_file(tmp_path / "a.safetensors")
    ray.kill_node(1)
    ray.start_node(1)
    output, messages = process.communicate(timeout=500)
    assert process.returncode == 0, messages
    assert any(note.startswith("resumed at step") for note in json.loads(output)["notes"])
    assert_same_weights(expected, tmp_path / "a.safetensors", exactly=True)


def test_a_sweep_resumes_after_the_loss_of_a_node(ray: RayCluster, tmp_path: Path) -> None:
    grid = ("--samples", "96", "--device-kind", "cpu", "--budget", "3", "--batch", "4,8,12,16", "--devices", "1,2,4")
    command = ("measure", WORKLOAD, *grid, "--strategy", "mirrored", "--out", "sweep")
    process = ray.start_scalewise(*command, *on(ray), folder=tmp_path)
    read_until(process, "cpu devices?, batch.*per step")
    ray.kill_node(1)
    ray.start_node(1)
    output, messages = process.communicate(timeout=500)
    assert process.returncode == 0, messages
    assert "12 cells on cpu devices, in sweep" in output
    measured = cells(tmp_path / "sweep")
    latest = {(cell["devices"], cell["batch"]): cell["status"] for cell in measured}
    assert latest == {(devices, batch): "ok" for devices in (1, 2, 4) for batch in (4, 8, 12, 16)}
    assert len([cell for cell in measured if cell["status"] == "ok"]) == 12  # none was measured twice
    assert_nothing_left(tmp_path)
