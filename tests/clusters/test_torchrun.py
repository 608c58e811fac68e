"""Commands under torchrun with two and four agents, on emulated hosts joined by links of 1 Gbit/s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from scalewise.hardware.cluster import read_cluster
from scalewise.launch.emulated_hosts import Host, emulate_hosts, obstacle
from tests.clusters.runs import (
    ROOT,
    STRATEGIES,
    TRAINING,
    WORKLOAD,
    assert_on_both_hosts,
    assert_same_weights,
    cells,
    scalewise,
    train_here,
)

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
GBps = 0.125
"""Rate of a link of 1 Gbit/s."""


@contextmanager
def torchrun(hosts: list[Host], ranks: int, *words: str, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start one agent of torchrun per host, each with this number of ranks."""
    processes = []
    for number, host in enumerate(hosts):
        launch = ["--nnodes", str(len(hosts)), "--node-rank", str(number), "--nproc-per-node", str(ranks)]
        launch += ["--master-addr", hosts[0].address, "--master-port", "29500"]
        core = str(number % (os.cpu_count() or 1))
        where = ["nsenter", f"--net={host.namespace}", "taskset", "--cpu-list", core] if ranks == 1 else [
            "nsenter", f"--net={host.namespace}"
        ]  # fmt: skip
        processes.append(
            subprocess.Popen(
                [*where, sys.executable, "-m", "torch.distributed.run", *launch, "-m", "scalewise", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TMPDIR": str(folder)},
                stdout=subprocess.DEVNULL if number else subprocess.PIPE,
                stderr=subprocess.DEVNULL if number else subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(hosts: list[Host], ranks: int, *words: str, folder: Path) -> str:
    """Return the output of the command on all hosts."""
    with torchrun(hosts, ranks, *words, folder=folder) as processes:
        output, messages = processes[0].communicate(timeout=400)
        assert [process.wait(60) for process in processes] == [0] * len(hosts), messages
    return output


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[list[Host]]:
    with emulate_hosts(2, "1gbit") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_equal_those_of_one_device(two_hosts: list[Host], single: Path, strategy: str, tmp_path: Path) -> None:
    command = ("train", WORKLOAD, *TRAINING, "--strategy", strategy, "--checkpoint", "trained.safetensors", "--json")
    result: dict[str, Any] = json.loads(run(two_hosts, 2, *command, folder=tmp_path))
    assert_on_both_hosts(result, STRATEGIES[strategy])
    assert_same_weights(single, tmp_path / "trained.safetensors")


def test_the_first_cause_names_rank_and_host(two_hosts: list[Host], tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import os\n"
        "from scalewise.models.catalogue import CATALOGUE\n"
        "from scalewise.models.resolve import resolve\n\n\n"
        "def model():\n"
        "    if os.environ.get('SCALEWISE_RANK') == '3':\n"
        "        raise ValueError('no such layer')\n"
        f"    return resolve('{WORKLOAD}')\n"
    )
    command = ("train", f"{broken}:model", *TRAINING, "--strategy", "mirrored")
    with torchrun(two_hosts, 2, *command, folder=tmp_path) as processes:
        _, messages = processes[0].communicate(timeout=200)
    assert "no such layer" in messages
    assert "rank 3 on " in messages
    assert "(host 1) failed at" in messages


PREDICTED = "synthetic:parameters=2000000,flops=40000000"
BATCHES = (12, 48)
ROUNDS = 2
"""Rounds of profiling and measuring, because the speed of a shared machine changes from minute to minute."""
Key = tuple[str, int, int]
"""Strategy, devices and batch of a cell."""


@pytest.mark.parametrize("count", [2, 4])
def test_doctor_measures_the_links_and_advise_predicts_the_cells(count: int, tmp_path: Path) -> None:
    counts = range(1, count + 1)
    per_device = sorted({-(-batch // devices) for batch in BATCHES for devices in counts})
    predicted: dict[Key, list[float]] = defaultdict(list)
    measured: dict[Key, list[float]] = defaultdict(list)
    with emulate_hosts(count, "1gbit") as hosts:
        report = json.loads(run(hosts, 1, "doctor", "--save", "links.toml", "--quick", "--json", folder=tmp_path))
        assert (report["devices"], report["hosts"], report["link"]) == (count, count, None)
        cluster = read_cluster(tmp_path / "links.toml")
        assert (cluster.hosts, cluster.devices_per_host) == (count, 1)
        [link] = [link for link in cluster.links if link.between == "hosts"]
        assert link.GBps == pytest.approx(GBps, rel=0.1)
        workload = (PREDICTED, "--samples", "480", "--device-kind", "cpu")
        beside = ("--beside", ",".join(map(str, counts[1:])), "--batch", ",".join(map(str, per_device)))
        grid = ("--devices", ",".join(map(str, counts)), "--batch", ",".join(map(str, BATCHES)), "--budget", "2")
        strategies = ("--strategy", "single", "--strategy", "mirrored", "--strategy", "ring")
        for number in range(ROUNDS):
            run(hosts, 1, "profile", *workload, *beside, "--out", "profile.json", folder=tmp_path)
            run(hosts, 1, "measure", *workload, *grid, *strategies, "--out", f"sweep{number}", folder=tmp_path)
            for key, seconds in predicted_steps(counts, strategies, tmp_path).items():
                predicted[key].append(seconds)
            for cell in cells(tmp_path / f"sweep{number}"):
                assert (cell["status"], cell["hosts"]) == ("ok", cell["devices"])
                measured[cell["strategy"], cell["devices"], cell["batch"]].append(cell["step_seconds"]["median"])
    assert_predicted(
        {key: median(seconds) for key, seconds in predicted.items()},
        {key: median(seconds) for key, seconds in measured.items()},
        link.GBps,
    )


def predicted_steps(counts: Sequence[int], strategies: Sequence[str], folder: Path) -> dict[Key, float]:
    """Return the seconds of the steps that `advise` predicts from the links and the profile."""
    steps: dict[Key, float] = {}
    for batch in BATCHES:
        devices = ("--devices", ",".join(map(str, counts)), "--batch", str(batch), "--samples", "480")
        given = ("--cluster", "links.toml", "--profile", "profile.json", "--json")
        advice = scalewise("advise", PREDICTED, *devices, *strategies, *given, folder=folder)
        assert advice.returncode == 0, advice.stderr
        for row in json.loads(advice.stdout)["rows"]:
            steps[row["strategy"], row["devices"], row["batch"]] = row["step_seconds"]["predicted"]
    return steps


def assert_predicted(predicted: dict[Key, float], measured: dict[Key, float], link_GBps: float) -> None:
    """Compare the steps on several hosts; a choke is a step that is slower than that of one device."""
    print(f"\nlink {link_GBps:.4f} GB/s of {GBps}")
    errors: list[float] = []
    for key in sorted(predicted.keys() & measured.keys()):
        strategy, devices, batch = key
        error = predicted[key] / measured[key] - 1
        alone = "single", 1, batch
        chokes = predicted[key] > predicted[alone], measured[key] > measured[alone]
        if devices > 1:
            errors.append(abs(error))
        print(
            f"{strategy:9} {devices} devices, batch {batch:3}: predicted {1e3 * predicted[key]:6.1f} ms, "
            f"measured {1e3 * measured[key]:6.1f} ms, {error:+.1%}{', choke' * chokes[1]}{' foreseen' * chokes[0]}"
        )
        near = abs(measured[key] / measured[alone] - 1) < 0.1
        assert devices == 1 or near or chokes[0] == chokes[1]
    print(f"median error {median(errors):.1%} of {len(errors)} cells")
    assert median(errors) <= 0.10
