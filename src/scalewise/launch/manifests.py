"""`--on kubernetes` and `--on sky`: write a manifest that runs the command, and print how to submit it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalewise.core.errors import UserError
from scalewise.core.files import check_writable, write_atomically
from scalewise.launch.schedulers import Request

RUNTIME = "torch-distributed"
"""Training runtime that Kubeflow Trainer installs for PyTorch."""
PORT = 29500


def run(request: Request) -> int:
    """Write the manifest; nothing is submitted."""
    kubernetes = request.scheduler == "kubernetes"
    file = Path(request.texts.get("file", f"scalewise-{request.command}.{request.scheduler}.yaml"))
    check_writable(file)
    manifest = train_job(request) if kubernetes else sky_task(request)
    write_atomically(file, ("\n".join(yaml_lines(manifest)) + "\n").encode())
    namespace = f" --namespace {request.texts['namespace']}" if "namespace" in request.texts else ""
    submit = (
        f"kubectl create{namespace} -f {shlex.quote(str(file))}"
        if kubernetes
        else f"sky launch {shlex.quote(str(file))}"
    )
    if "--json" in request.arguments:
        json.dump({"manifest": str(file), "submit": submit}, sys.stdout, indent=2)
        print()
    else:
        print(f"written to {file}; submit it with: {submit}")
    return 0


def job_name(request: Request) -> str:
    """Name that Kubernetes and SkyPilot accept: 'scalewise-train-conv'."""
    workload = next((word for word in request.arguments[1:] if not word.startswith("-")), "")
    words = re.sub(r"[^a-z0-9]+", "-", f"scalewise-{request.command}-{workload}".lower())
    return words[:40].strip("-")


def train_job(request: Request) -> dict[str, Any]:
    """TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1)."""
    metadata = {"generateName": f"{job_name(request)}-"}
    if "namespace" in request.texts:
        metadata["namespace"] = request.texts["namespace"]
    trainer: dict[str, Any] = {
        "image": request.texts["image"],
        "numNodes": request.nodes,
        "numProcPerNode": request.devices_per_node,
        # Kubeflow's runtime sets PET_NNODES, PET_NPROC_PER_NODE and the address, which torchrun reads.
        "command": ["torchrun"],
        "args": ["-m", "scalewise", *request.arguments],
    }
    if gpus := request.numbers.get("gpus_per_node"):
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {"runtimeRef": {"name": request.texts.get("runtime", RUNTIME)}, "trainer": trainer},
    }


def sky_task(request: Request) -> dict[str, Any]:
    """Task of SkyPilot."""
    resources: dict[str, Any] = {}
    gpus = request.numbers.get("gpus_per_node")
    if "accelerators" in request.texts:
        resources["accelerators"] = f"{request.texts['accelerators']}:{gpus or 1}"
    elif gpus:
        raise UserError("--on sky: gpus_per_node needs the kind of GPU; add accelerators=A100")
    if "infra" in request.texts:
        resources["infra"] = request.texts["infra"]
    torchrun = (
        'torchrun --nnodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" '
        f"--nproc-per-node {request.devices_per_node} "
        f'--master-addr "$(echo "$SKYPILOT_NODE_IPS" | head -n1)" --master-port {PORT} '
        f"-m scalewise {shlex.join(request.arguments)}"
    )
    task: dict[str, Any] = {"name": job_name(request), "num_nodes": request.nodes, "workdir": "."}
    if resources:
        task["resources"] = resources
    return task | {"setup": "pip install ./scalewise-*.whl", "run": torchrun}


def yaml_lines(value: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    """Write mappings, lists of texts and scalars as YAML; texts are quoted as in JSON, which YAML includes."""
    space = " " * indent
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{space}{key}:"
            yield from yaml_lines(item, indent + 2)
        elif isinstance(item, Sequence) and not isinstance(item, str):
            yield f"{space}{key}:"
            yield from (f"{space}- {json.dumps(element)}" for element in item)
        else:
            yield f"{space}{key}: {json.dumps(item)}"
