"""Predictions of measured steps on one GPU, at every quality, with constants that were not fitted to them.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scalewise.hardware.gpus import Gpu, gpu_named
from scalewise.predict.gpu_model import (
    Family,
    GpuModel,
    Interval,
    OperatorTable,
    Quality,
    StepEstimate,
    gpu_constants,
    interval,
)
from scalewise.predict.operators import totals
from scalewise.predict.step_seconds import BIAS_KEPT, HOST_UNKNOWN, family_of, step_limits
from scalewise.published.gpu_steps import OneGpuCell, one_gpu_tables


@dataclass(frozen=True)
class Scored:
    """One measured cell and its prediction from the specification."""

    cell: OneGpuCell
    gpu: Gpu
    estimate: StepEstimate
    family: Family
    flops: float
    bytes: float
    calls: float
    peak_TFLOPS: float

    @property
    def seconds(self) -> float:
        return self.estimate.seconds

    @property
    def half(self) -> bool:
        return self.cell.precision in ("fp16", "bf16")

    @property
    def roofline_seconds(self) -> float:
        return max(self.flops / (self.peak_TFLOPS * 1e12), self.bytes / (self.gpu.memory_GBps * 1e9))


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of one measured cell, with a 90 % interval."""

    scored: Scored
    seconds: float
    low: float
    high: float

    @property
    def measured(self) -> float:
        return self.scored.cell.seconds

    @property
    def error_percent(self) -> float:
        return 100 * abs(self.seconds / self.measured - 1)

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


def predicted(cell: OneGpuCell, without: str | None) -> Scored:
    """Predict one cell with constants that were not fitted to it."""
    gpu = gpu_of(cell)
    operators = cell.operator_list()
    table = OperatorTable.of(operators)
    model = GpuModel(gpu, gpu_constants(without), cell.power_W)
    estimate = model.step(table, cell.execution)
    estimate = replace(estimate, gpu_seconds=estimate.gpu_seconds + cell.transfer_seconds)
    sums = totals(operators)
    return Scored(
        cell,
        gpu,
        estimate,
        family_of(operators),
        sums["flops"],
        sums["bytes"],
        model.host_calls(table),
        model.peak_TFLOPS(cell.precision),
    )


def gpu_of(cell: OneGpuCell) -> Gpu:
    gpu = gpu_named(cell.gpu)
    return replace(gpu, memory_GBps=cell.memory_GBps) if cell.memory_GBps else gpu


def fold_of(cell: OneGpuCell) -> str:
    """Name of what was excluded when the constants for this cell were fitted: its GPU, or its whole table."""
    return gpu_named(cell.gpu).name if cell.table == "one_gpu_torchvision" else cell.table


def scored_table(name: str) -> list[Scored]:
    """All cells of one table, predicted without their GPU or table."""
    return [predicted(cell, fold_of(cell)) for cell in one_gpu_tables()[name]]


def specified(cells: Iterable[Scored], skip: str | None = None) -> list[Prediction]:
    """Predictions from the specification. `skip` names the table whose scores do not count for the intervals."""
    return [_prediction(scored, scored.seconds, "specification", skip) for scored in cells]


def specified_on_unknown_hosts(cells: Iterable[Scored], skip: str | None = None) -> list[Prediction]:
    """Predictions from the specification if no step was measured on the host: its speed widens the interval."""
    predictions = []
    for scored in cells:
        limits = interval(
            "specification",
            scored.family,
            scored.cell.precision,
            without=skip,
            host_share=scored.estimate.host_share,
        )
        low, high = step_limits(scored.estimate, limits, HOST_UNKNOWN)
        predictions.append(Prediction(scored, scored.seconds, low, high))
    return predictions


def calibrated(cells: Sequence[Scored], skip: str | None = None) -> list[Prediction]:
    """Predictions corrected by one measured cell of the same host and precision: its median model.

    The calibrating cell itself is left out.
    """
    predictions = []
    for group in grouped(cells, lambda scored: f"{scored.cell.host} {scored.half}").values():
        if len(group) < 2:
            continue
        reference = sorted(group, key=lambda scored: scored.seconds)[len(group) // 2]
        bias = (reference.cell.seconds / reference.seconds) ** BIAS_KEPT["calibrated"]
        predictions += [
            _prediction(scored, scored.seconds * bias, "calibrated", skip)
            for scored in group
            if scored is not reference
        ]
    return predictions


def scaled(cells: Sequence[Scored], skip: str | None = None) -> list[Prediction]:
    """Predictions corrected by the same model, batch and precision measured on another GPU."""
    kept = BIAS_KEPT["scaled"]
    return _scaled(cells, same_step, lambda source, target: source.gpu.name != target.gpu.name, skip, kept)


def scaled_from_batch(cells: Sequence[Scored], skip: str | None = None) -> list[Prediction]:
    """Seconds of the same model at another batch on the same GPU, times the predicted ratio."""
    return _scaled(cells, _same_but_batch, lambda source, target: source.cell.batch != target.cell.batch, skip)


def scaled_from_precision(cells: Sequence[Scored], skip: str | None = None) -> list[Prediction]:
    """Seconds of the same model in another precision on the same GPU, times the predicted ratio."""
    return _scaled(
        cells, _same_but_precision, lambda source, target: source.cell.precision != target.cell.precision, skip
    )


def _scaled(
    cells: Sequence[Scored],
    key: Callable[[Scored], str],
    differ: Callable[[Scored, Scored], bool],
    skip: str | None,
    bias_kept: float = 1.0,
) -> list[Prediction]:
    return [
        _prediction(target, target.seconds * (source.cell.seconds / source.seconds) ** bias_kept, "scaled", skip)
        for group in grouped(cells, key).values()
        for target in group
        for source in group
        if differ(source, target)
    ]


def _prediction(scored: Scored, seconds: float, quality: Quality, skip: str | None) -> Prediction:
    """Interval from the tables other than `skip`; host-bound cells are in few tables, so theirs is from all."""
    limits = limits_of(scored, quality, skip)
    return Prediction(scored, seconds, seconds * limits.low, seconds * limits.high)


def limits_of(scored: Scored, quality: Quality, skip: str | None) -> Interval:
    if scored.estimate.host_bound:
        return interval("calibrated", "host-bound", scored.cell.precision)
    return interval(quality, scored.family, scored.cell.precision, without=skip, host_share=scored.estimate.host_share)


def same_step(scored: Scored) -> str:
    """Key of cells that differ only in the GPU."""
    return f"{scored.cell.model} {scored.half} {scored.cell.batch}"


def _same_but_batch(scored: Scored) -> str:
    cell = scored.cell
    return f"{cell.host} {cell.model} {cell.precision} {cell.execution}"


def _same_but_precision(scored: Scored) -> str:
    cell = scored.cell
    return f"{cell.host} {cell.model} {cell.batch} {cell.execution}"


def with_measured_host(cells: Sequence[Scored]) -> list[Scored]:
    """Cells with the host time per call taken from the host's cell that has the most calls per second of GPU work.

    That cell is left out. Cells without host time, such as CUDA graphs, stay as they are.
    """
    results = []
    for group in grouped(cells, lambda scored: scored.cell.host).values():
        eager = [scored for scored in group if scored.cell.execution == "eager"]
        results += [scored for scored in group if scored.cell.execution != "eager"]
        if not eager:
            continue
        heaviest = max(eager, key=lambda scored: scored.calls / scored.estimate.gpu_seconds)
        per_call = heaviest.cell.seconds / heaviest.calls
        results += [
            replace(scored, estimate=replace(scored.estimate, host_seconds=scored.calls * per_call))
            for scored in eager
            if scored is not heaviest
        ]
    return results


def grouped(cells: Iterable[Scored], key: Callable[[Scored], str]) -> Mapping[str, list[Scored]]:
    groups: dict[str, list[Scored]] = {}
    for scored in cells:
        groups.setdefault(key(scored), []).append(scored)
    return groups
