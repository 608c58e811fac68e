"""Tests of real clusters start schedulers and need root; `make test-clusters` runs them."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version

from tests.clusters.runs import SKYPILOT

collect_ignore_glob = [] if os.environ.get("SCALEWISE_TEST_CLUSTERS") else ["test_*.py"]


def pytest_report_header() -> list[str]:
    """Name what the tests check against."""
    if not os.environ.get("SCALEWISE_TEST_CLUSTERS"):
        return []
    slurm = _output("slurmctld", "-V")
    sky = _output(SKYPILOT, "-c", "from importlib.metadata import version; print(version('skypilot'))")
    packages = [f"{name} {version(name)}" for name in ("ray", "submitit", "torch", "kubeflow-trainer-api")]
    return [f"checked against: {', '.join([slurm, *packages, f'skypilot {sky}'])}"]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
