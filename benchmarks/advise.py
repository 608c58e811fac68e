"""Speed of predictions: the study's whole grid with all strategies, thousands of devices, and a user's own model.

python benchmarks/advise.py             # predictions: CPU seconds of this process, best of three
python benchmarks/advise.py resnet50    # `scalewise advise` on a user's model, without and with a cache: wall seconds
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from palm import BF16, CHIPS, SEQUENCES, SHARING, TOKENS, WIDTH
from palm import profile as palm_profile
from scalewise.core.errors import UserError
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.memory import profile_footprint
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import STUDY_MODELS, stevens_profile
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.plan import Section
from scalewise.strategies.registry import STRATEGIES, strategy_of, strategy_text

BATCHES = (10, 20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 600)
EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet50.py"


def grid() -> int:
    """Predict 2 models x 12 batches x 4 device counts with every strategy; return the number of cells.

    Cells that a strategy refuses are not counted.
    """
    cluster = cluster_of("4x-gtx-1080-ti")
    cells = 0
    for workload in STUDY_MODELS:
        predictor = Predictor(stevens_profile(workload), cluster)
        for name in STRATEGIES:
            for devices in (1, 2, 3, 4) if name != "single" else (1,):
                for batch in BATCHES:
                    try:
                        predictor.predict(strategy_of(name), devices, batch)
                    except UserError:
                        continue
                    cells += 1
    return cells


def many(devices: int, strategy: str) -> Callable[[], int]:
    def predict() -> int:
        cluster = cluster_of(f"8 x a100-nvlink, {devices // 8} hosts, infiniband-200")
        profile = stevens_profile("linear")
        Predictor(profile, cluster).predict(strategy_of(strategy), devices, 10 * devices)
        return 1

    return predict


def hybrid(devices: int, strategy: Hybrid, profile: ProfileDocument) -> Callable[[], int]:
    """Prediction of PaLM's layers, with one model replica on the eight GPUs of a host."""

    def predict() -> int:
        cluster = cluster_of(f"8 x a100-nvlink, {devices // 8} hosts, infiniband-200")
        Predictor(profile, cluster).predict(strategy, devices, 32 * devices)
        return 1

    return predict


def staged() -> ProfileDocument:
    """Profile of PaLM in which a stage may end after every matrix."""
    profile = palm_profile(0.7)
    footprint = profile_footprint(profile)
    passed = TOKENS * WIDTH * BF16
    sections = tuple(
        Section(layer.name, layer.flops, BF16 * layer.columns * layer.rows, passed, (passed,), (passed,))
        for layer in footprint.matrices
    )
    return profile.model_copy(update={"footprint": asdict(replace(footprint, sections=sections))})


def palm() -> int:
    Predictor(palm_profile(0.7), cluster_of("3072x-tpu-v4")).predict(Hybrid(tensor=SHARING), CHIPS, SEQUENCES)
    return 1


def cpu_seconds(work: Callable[[], int]) -> tuple[float, int]:
    best, cells = float("inf"), 0
    for _ in range(3):
        start = process_time()
        cells = work()
        best = min(best, process_time() - start)
    return best, cells


def predictions() -> None:
    seconds, cells = cpu_seconds(grid)
    print(f"the study's grid, {len(STRATEGIES)} strategies, {cells} cells: {seconds:.2f} s of CPU time")
    for name in ("mirrored", "sharded", "data-parallel", "parameter-server", "parameter-server-async"):
        for devices in (16, 4096, 65536):
            print(f"{name} on {devices:,} devices: {1e3 * cpu_seconds(many(devices, name))[0]:.1f} ms")
    for strategy, profile in ((Hybrid(tensor=8), palm_profile(0.7)), (Hybrid(stages=8), staged())):
        for devices in (32, 4096, 65536):
            seconds, _ = cpu_seconds(hybrid(devices, strategy, profile))
            print(f"{strategy_text(strategy)} on {devices:,} devices, 118 layers: {1e3 * seconds:.1f} ms")
    print(f"hybrid on PaLM's {CHIPS:,} chips: {1e3 * cpu_seconds(palm)[0]:.1f} ms")


def own_model() -> None:
    """Time `scalewise advise` on a ResNet-50: first with an empty cache, then with the cache."""
    command = [sys.executable, "-m", "scalewise", "advise", f"{EXAMPLE}:resnet50", "--input", "3x224x224"]
    with TemporaryDirectory() as cache:
        for run in ("empty cache", "cached"):
            started = perf_counter()
            process = subprocess.run(
                [*command, "--classes", "1000"],
                env={**os.environ, "XDG_CACHE_HOME": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"a user's ResNet-50, {run}: {perf_counter() - started:.1f} s")
    print(process.stdout)


if __name__ == "__main__":
    own_model() if sys.argv[1:] == ["resnet50"] else predictions()
