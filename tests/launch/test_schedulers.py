"""Tests of `--on`: its options, what is run on the cluster, and the environment of every host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch import ray_train
from scalewise.launch.host_process import HostPlace, announce_address, free_port, start_command, wait_for_address
from scalewise.launch.real_hosts import Launch
from scalewise.launch.schedulers import read_request, resumed, run_on, without_on
from tests.command import command


def test_options_are_texts_and_numbers() -> None:
    request = read_request("slurm:partition=gpu,nodes=2,gpus_per_node=4,time=60", ["train", "conv", "--on", "x"])
    assert (request.nodes, request.devices_per_node, request.numbers["time"]) == (2, 4, 60)
    assert (request.texts, request.arguments) == ({"partition": "gpu"}, ("train", "conv"))
    assert read_request("ray", ["measure"]).devices_per_node == 1
    assert read_request("ray:gpus_per_node=4,devices_per_node=2", ["measure"]).devices_per_node == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slrum", "unknown scheduler of --on 'slrum' (did you mean 'slurm'?); valid: slurm, ray, kubernetes, sky"),
        ("slurm:node=2", "unknown option of --on slurm 'node'"),
        ("slurm:nodes=0", "--on slurm: nodes is '0'; it must be a whole number of at least 1"),
        ("slurm:time=1h", "--on slurm: time is '1h'; it must be a whole number of at least 1"),
        ("kubernetes:nodes=2", "--on kubernetes needs image; write --on kubernetes:image=..."),
    ],
)
def test_bad_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read_request(text, ["train"])
    assert message in str(refused.value)


def test_the_command_on_the_cluster_is_the_same_without_on() -> None:
    assert without_on(["train", "conv", "--on", "slurm:nodes=2", "--json"]) == ("train", "conv", "--json")
    assert without_on(["measure", "--on=ray", "linear"]) == ("measure", "linear")


def test_a_restarted_job_resumes_if_it_left_something(tmp_path: Path) -> None:
    checkpoint, folder = str(tmp_path / "a.safetensors"), str(tmp_path / "sweep")
    train, measure = (
        ["train", "conv", "--checkpoint", checkpoint, "--overwrite"],
        ["measure", "conv", f"--out={folder}"],
    )
    assert resumed(train) == tuple(train)
    assert resumed(measure) == tuple(measure)
    Path(checkpoint).touch()
    Path(folder).mkdir()
    assert resumed(train) == ("train", "conv", "--checkpoint", checkpoint, "--resume")
    assert resumed(measure) == (*measure, "--resume")
    assert resumed([*measure, "--resume"]) == (*measure, "--resume")
    assert resumed(["train", "conv"]) == ("train", "conv")


@pytest.mark.parametrize("missing", ["submitit", "ray", "pyarrow"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Train needs pyarrow, which `pip install ray` does not install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    name, package = ("slurm", "submitit") if missing == "submitit" else ("ray", r"ray\[train\]")
    with pytest.raises(UserError, match=rf"--on {name} needs the package {package}; .*: pip install '{package}'$"):
        run_on(name, ["train", "linear"])


def test_relative_names_are_in_the_folder_of_the_command(tmp_path: Path) -> None:
    measure = ["measure", "conv", "--out", "sweep"]
    (tmp_path / "sweep").mkdir()
    assert resumed(measure, tmp_path) == (*measure, "--resume")
    assert resumed(measure, tmp_path / "elsewhere") == tuple(measure)


def test_ctrl_c_during_a_run_on_ray_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Train has its own handler of Ctrl-C, which ends the ranks and then raises SystemExit(0)."""
    ray, train, torch = MagicMock(), MagicMock(), MagicMock()
    ray.exceptions.RayError = OSError
    ray.get.return_value = []
    torch.TorchTrainer.return_value.fit.side_effect = SystemExit(0)
    for name, module in {"ray": ray, "ray.train": train, "ray.train.torch": torch}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(RunFailed, match="interrupted; the ranks on the Ray cluster were ended"):
        ray_train.run(read_request("ray:nodes=2", ["train", "linear"]))
    ray.shutdown.assert_called_once()


@pytest.mark.slow
def test_without_slurm_the_command_is_refused(tmp_path: Path) -> None:
    result = subprocess.run(
        command("train", "linear", "--on", "slurm:nodes=2"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": ""},  # the machine may have Slurm
    )
    assert (result.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "--on slurm needs the command 'sbatch'" in result.stderr


def test_a_host_finds_the_first_one_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "address.json"
    monkeypatch.setattr("scalewise.launch.host_process.ADDRESS_SECONDS", 0.0)
    with pytest.raises(RunFailed, match="all hosts of the job must share this folder"):
        wait_for_address(file)
    announced = announce_address(file, "127.0.0.1")
    assert wait_for_address(file) == announced


def test_the_environment_is_that_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    place = HostPlace(1, 2, 4, "10.0.0.1", 29500, "secret", "job7", 3)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert Launch.from_environment() == Launch(1, 2, 0, 4, "10.0.0.1", 29500, "3", "job7", False)


@pytest.mark.slow
def test_a_command_ends_with_the_process_that_started_it() -> None:
    script = (
        "from scalewise.launch.host_process import HostPlace, start_command\n"
        "place = HostPlace(1, 2, 1, '127.0.0.1', 9, 'secret', 'run')\n"
        "print(start_command(['train', 'linear'], place).pid, flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    with suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(ended.stdout)).wait(30)


@pytest.mark.slow
def test_the_command_receives_its_place(tmp_path: Path) -> None:
    place = HostPlace(0, 1, 2, "127.0.0.1", free_port("127.0.0.1"), "secret", "run")
    with (tmp_path / "out").open("wb") as output:
        process = start_command(["list", "strategies", "--json"], place, output, output)
        assert process.wait(120) == 0
    assert os.getpgid(0) != process.pid
    assert json.loads((tmp_path / "out").read_text())
