"""Idle share (bubble) of devices that train a model in stages: measured on CPU ranks and planned.

.venv/bin/python benchmarks/idle.py [--devices 2] [--steps 12]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

import scalewise
from scalewise.core.timeline import Timeline
from scalewise.core.training_options import steps_per_epoch
from scalewise.data.dataset import load_generated
from scalewise.models.workload import Workload, classification_loss

BLOCKS, WIDTH, POSITIONS, CLASSES = 8, 768, 16, 8
BATCH, SAMPLES = 32, 128
POINTS = 5.0
"""Allowed difference between measured and planned idle share, in percent of the step."""


class Block(nn.Module):
    """Residual block; all blocks have the same amount of compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(vectors)
        return vectors + outputs


class Scale(nn.Module):
    """Trainable scale before the first block, so that its backward also computes the gradient of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(WIDTH))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors * self.factor


class Head(nn.Module):
    """Mean over positions: almost no compute, so that the stages are equal."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors.mean(1)[:, :CLASSES]


def heavy() -> Workload:
    """Workload of equal blocks with much compute and little communication."""
    return Workload(
        name="heavy",
        model=lambda: nn.Sequential(Scale(), *(Block() for _ in range(BLOCKS)), Head()),
        data=partial(load_generated, input_shape=(POSITIONS, WIDTH), classes=CLASSES),
        loss=classification_loss,
        input_shape=(POSITIONS, WIDTH),
        learning_rate=1e-4,
    )


def cases(devices: int) -> Iterator[tuple[str, float]]:
    """Yield (strategy, planned idle share of its devices' time)."""
    yield "layers", (devices - 1) / devices
    for schedule in ("gpipe", "1f1b"):
        for count in (devices, 2 * devices, 4 * devices):
            yield f"pipeline:schedule={schedule},microbatches={count}", (devices - 1) / (count + devices - 1)


def idle_share(timeline: Timeline) -> float:
    """Idle share of the time of all devices together."""
    seconds: dict[str, float] = defaultdict(float)
    for span in timeline.spans:
        seconds["idle" if span.phase == "idle" else "busy"] += span.seconds
    return seconds["idle"] / sum(seconds.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    print(f"{'strategy':44} {'planned':>8} {'measured':>9} {'step':>9}")
    worst = 0.0
    for strategy, planned in cases(options.devices):
        result = scalewise.train(
            f"{Path(__file__).resolve()}:heavy",
            strategy=strategy,
            devices=options.devices,
            device_kind="cpu",
            batch=BATCH,
            steps=max(options.steps, steps_per_epoch(SAMPLES, BATCH)),
            samples=SAMPLES,
        )
        assert result.timeline is not None
        measured = idle_share(result.timeline)
        worst = max(worst, 100 * abs(measured - planned))
        print(f"{strategy:44} {planned:8.1%} {measured:9.1%} {result.step_seconds.median * 1e3:6.0f} ms", flush=True)
    print(f"largest difference: {worst:.1f} percentage points (allowed: {POINTS:g})")
    return int(worst > POINTS)


if __name__ == "__main__":
    sys.exit(main())
