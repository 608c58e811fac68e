"""How quick predictions are: the study's whole grid over all strategies, and thousands of devices.

    python benchmarks/advise.py

CPU seconds of this process, the best of three.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

from scalewise.clusters.catalogue import cluster_of
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import MODELS, stevens_profile
from scalewise.strategies.registry import STRATEGIES, strategy_of

BATCHES = (10, 20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 600)


def grid() -> int:
    """2 models x 12 batches x 4 counts; with their epochs' short last steps."""
    cluster = cluster_of("4x-gtx-1080-ti")
    cells = 0
    for workload in MODELS:
        predictor = Predictor(stevens_profile(workload), cluster)
        for name in STRATEGIES:
            for devices in (1, 2, 3, 4) if name != "single" else (1,):
                for batch in BATCHES:
                    predictor.predict(strategy_of(name), devices, batch)
                    cells += 1
    return cells


def many(devices: int, strategy: str) -> Callable[[], int]:
    def predicted() -> int:
        cluster = cluster_of(f"8 x a100-nvlink, {devices // 8} hosts, infiniband-200")
        profile = stevens_profile("linear")
        Predictor(profile, cluster).predict(strategy_of(strategy), devices, 10 * devices)
        return 1

    return predicted


def cpu_seconds(work: Callable[[], int]) -> tuple[float, int]:
    best, cells = float("inf"), 0
    for _ in range(3):
        start = process_time()
        cells = work()
        best = min(best, process_time() - start)
    return best, cells


if __name__ == "__main__":
    seconds, cells = cpu_seconds(grid)
    print(f"the study's grid, {len(STRATEGIES)} strategies, {cells} cells: {seconds:.2f} s of CPU time")
    for strategy in ("mirrored", "parameter-server"):
        for devices in (16, 4096, 65536):
            print(f"{strategy} on {devices:,} devices: {1e3 * cpu_seconds(many(devices, strategy))[0]:.1f} ms")
