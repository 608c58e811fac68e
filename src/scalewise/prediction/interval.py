"""How sure a prediction is: a 90 % interval from what is known of the device and of the links.

The widths were chosen by looking at the published tables that `scalewise validate` scores, and hold there only; those
of CPU ranks by looking at two cores of a shared machine (benchmarks/predict_here.py), on which one device itself comes
out 10 % off its own profile in the median.
"""

from __future__ import annotations

import math
from collections import defaultdict

from scalewise.clusters.cluster import Cluster
from scalewise.phases import BETWEEN_DEVICES
from scalewise.prediction.costs import Spread
from scalewise.simulation.layout import Layout
from scalewise.simulation.simulate import Simulated
from scalewise.simulation.steady import Steady

COMPUTE = ("forward", "loss", "backward", "update", "idle")
ALONE = {"nccl": 0.025, "gloo": 0.15}
"""A profiled device doing what it was profiled at, again; gloo stands for the cores of a CPU, which others use, too."""
BESIDE_OTHERS = {"catalogue": 0.08, "fitted": 0.05, "measured": 0.05}
"""The whole step on several devices of a host, by where the constants of its links come from."""
LINK = {"catalogue": 0.35, "fitted": 0.08, "measured": 0.08}
"""Seconds of transfers inside a host."""
OVER_HOSTS = 0.1
NETWORK = {"catalogue": 0.5, "fitted": 0.5, "measured": 0.2}
"""The same two between hosts, where a fit on one placement says little about the others."""
UNEVEN = 0.35
"""Upwards only, where a model is cut into stages: an even cut is the best there is, and real ones are not."""
CORES = 0.2
"""The whole step on several cores, at least, and the next the seconds of their transfers."""
SOCKETS = 0.2
HIDDEN = 0.6
"""What transfers beside compute count: part of them shows when they take longer."""


def reach(step: Simulated, spread: Spread, cluster: Cluster, layout: Layout) -> tuple[float, float]:
    """How far below and above the interval goes, as parts of the step: independent errors add up squared."""
    phases = step.timeline.phases
    total = sum(phases.values())
    shown = sum(seconds for phase, seconds in phases.items() if phase in BETWEEN_DEVICES)
    # The timeline is that of the workers that were followed: more of them stretch all of it.
    stretch = step.stretch if isinstance(step, Steady) else 1.0
    network = shown + HIDDEN * max(0.0, step.transfer_seconds / stretch - shown)
    compute = sum(phases.get(phase, 0.0) for phase in COMPUTE)
    several = OVER_HOSTS if layout.hosts > 1 else BESIDE_OTHERS[cluster.knowledge]
    link = (NETWORK if layout.hosts > 1 else LINK)[cluster.knowledge]
    if cluster.backend == "gloo":
        several, link = max(several, CORES), max(link, SOCKETS)
    whole = ALONE[cluster.backend] if layout.workers == 1 else several
    uneven = UNEVEN if _is_cut(step) else 0.0

    def one_way(jump: float, cut: float) -> float:
        return math.hypot(jump * compute, whole * total, link * network, cut * total) / total

    return min(one_way(1 - spread.low, 0.0), 0.95), one_way(spread.high - 1, uneven)


def _is_cut(step: Simulated) -> bool:
    """Whether a rank computes only part of the model."""
    shares: dict[int, float] = defaultdict(float)
    for operation in step.operations:
        if operation.phase == "forward":
            shares[operation.rank] += operation.share
    return min(shares.values(), default=1.0) < 1 - 1e-6
