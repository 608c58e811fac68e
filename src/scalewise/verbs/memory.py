"""What a run will need of each device's memory, without running it."""

from __future__ import annotations

import torch

from scalewise.data.data import DataRequest
from scalewise.prediction.held import Run
from scalewise.prediction.holdings import cuts_by, held_by, samples_at_a_time
from scalewise.prediction.memory import Memory, peak_memory
from scalewise.strategies.registry import strategy_of
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.layer_memory import layers_of
from scalewise.workloads.resolve import resolve


def planned_memory(
    workload: str, strategy: str, devices: int, batch: int, device_kind: str = "cpu", samples: int | None = None
) -> list[Memory]:
    """Of every rank, at its peak; samples that live on a GPU included. Empty if the model needs real numbers."""
    chosen, found = strategy_of(strategy), resolve(workload)
    data = found.data(DataRequest(samples=samples))
    device = torch.device("cpu" if device_kind == "cpu" else "cuda")
    footprint = footprint_of(found, data)
    resident = 0 if device_kind == "cpu" else len(data) * (footprint.input_bytes + footprint.target_bytes)
    run = Run(devices, batch, footprint, device_kind != "cpu", device_kind == "slice", resident_bytes=resident)
    layers = layers_of(found, data, samples_at_a_time(chosen, run), device, cuts=cuts_by(chosen, run))
    return [
        peak_memory(held_by(chosen, rank, run, layers), found.optimizer) for rank in range(devices if layers else 0)
    ]
