"""Tests of the manifests for Kubernetes and SkyPilot."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scalewise.core.errors import UserError
from scalewise.launch.manifests import run, sky_task, train_job
from scalewise.launch.schedulers import read_request

ARGUMENTS = ["train", "unet:width=16", "--strategy", "mirrored", "--batch", "80"]
SKY_KEYS = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run", "config"}
"""Top-level keys of a SkyPilot task, from its YAML reference."""
SKY_RESOURCES = {"infra", "accelerators", "cpus", "memory", "use_spot", "disk_size", "image_id", "any_of", "ordered"}


def written(text: str, folder: Path, arguments: list[str] = ARGUMENTS) -> dict[str, Any]:
    file = folder / "manifest.yaml"
    assert run(read_request(f"{text},file={file}", arguments)) == 0
    return yaml.safe_load(file.read_text())  # type: ignore[no-any-return]


def test_a_train_job_is_valid_for_kubeflow(tmp_path: Path) -> None:
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob  # takes a second

    manifest = written("kubernetes:image=registry/scalewise:1,nodes=2,gpus_per_node=4,namespace=team", tmp_path)
    job = TrainerV1alpha1TrainJob.from_dict(manifest)
    assert job is not None
    assert job.spec is not None
    assert (job.api_version, job.kind) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = job.spec.trainer
    assert trainer is not None
    assert (trainer.num_nodes, trainer.num_proc_per_node, trainer.image) == (2, 4, "registry/scalewise:1")
    assert [*(trainer.command or []), *(trainer.args or [])] == ["torchrun", "-m", "scalewise", *ARGUMENTS]
    assert job.spec.runtime_ref.name == "torch-distributed"
    assert job.to_dict() == manifest  # no key that the model does not know


def test_a_sky_task_has_documented_keys_only(tmp_path: Path) -> None:
    task = written("sky:accelerators=A100,nodes=2,gpus_per_node=4,infra=aws", tmp_path)
    assert set(task) <= SKY_KEYS
    assert set(task["resources"]) <= SKY_RESOURCES
    assert (task["num_nodes"], task["resources"]) == (2, {"accelerators": "A100:4", "infra": "aws"})
    assert task["run"].endswith("-m scalewise train unet:width=16 --strategy mirrored --batch 80")


@pytest.mark.slow
def test_the_sky_task_starts_the_command_with_the_variables_of_skypilot(tmp_path: Path) -> None:
    task = sky_task(read_request("sky:nodes=2,devices_per_node=3", ["train", "my model.py:make"]))
    (tmp_path / "torchrun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    }
    words = subprocess.run(
        ["sh", "-c", task["run"]], env=environment, capture_output=True, text=True, check=True
    ).stdout
    options = "--nnodes 2 --node-rank 1 --nproc-per-node 3 --master-addr 10.0.0.1 --master-port 29500 -m scalewise"
    assert words.splitlines() == [*options.split(), "train", "my model.py:make"]


def test_json_names_the_file_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written("kubernetes:image=a", tmp_path, [*ARGUMENTS, "--json"])
    file = tmp_path / "manifest.yaml"
    assert json.loads(capsys.readouterr().out) == {"manifest": str(file), "submit": f"kubectl create -f {file}"}


def test_gpus_without_a_kind_are_refused() -> None:
    with pytest.raises(UserError, match="add accelerators=A100"):
        sky_task(read_request("sky:gpus_per_node=4", ARGUMENTS))


def test_names_are_valid_for_kubernetes() -> None:
    request = read_request("kubernetes:image=a", ["train", "My/Model.py:make_" + "x" * 60])
    name = train_job(request)["metadata"]["generateName"]
    assert name.startswith("scalewise-train-my-model-py-make-x")
    assert len(name) <= 58
    assert name == name.lower()
