"""Manifests of `--on sky`, read by the published SkyPilot, which is installed in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.runs import SKYPILOT, scalewise

READ = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
[resources] = task.resources
print(json.dumps([task.name, task.num_nodes, resources.accelerators, resources.infra.to_str(), task.setup, task.run]))
"""
TRAIN = ("train", "unet:width=16", "--strategy", "mirrored", "--batch", "80")


def read_by_skypilot(manifest: Path) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--net", SKYPILOT, "-c", READ, str(manifest)]
    environment = {"HOME": str(manifest.parent), "PATH": "/usr/bin:/bin", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    return subprocess.run(command, env=environment, cwd=manifest.parent, capture_output=True, text=True, check=False)


def written(folder: Path, on: str, command: Sequence[str] = TRAIN) -> Path:
    result = scalewise(*command, "--on", f"{on},file=task.yaml", folder=folder)
    assert result.stdout == "written to task.yaml; submit it with: sky launch task.yaml\n", result.stderr
    return folder / "task.yaml"


@pytest.mark.parametrize(
    ("on", "resources"),
    [
        ("sky:accelerators=A100,nodes=2,gpus_per_node=4,infra=aws", [2, {"A100": 4}, "aws"]),
        ("sky:nodes=3,devices_per_node=8", [3, None, None]),
    ],
)
def test_skypilot_reads_the_task(on: str, resources: list[Any], tmp_path: Path) -> None:
    result = read_by_skypilot(written(tmp_path, on))
    assert result.returncode == 0, result.stderr
    name, *actual, setup, run = json.loads(result.stdout.splitlines()[-1])
    assert (name, actual) == ("scalewise-train-unet-width-16", resources)
    assert setup == "pip install ./scalewise-*.whl"
    assert run.endswith("-m scalewise train unet:width=16 --strategy mirrored --batch 80")


def test_skypilot_refuses_a_wrong_key(tmp_path: Path) -> None:
    """So the test above would fail on a key that SkyPilot does not know."""
    manifest = written(tmp_path, "sky:nodes=2")
    manifest.write_text(manifest.read_text().replace("num_nodes", "nodes"))
    result = read_by_skypilot(manifest)
    assert result.returncode
    assert "num_nodes" in result.stderr
