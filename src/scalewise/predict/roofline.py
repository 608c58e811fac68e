"""Roofline bound of a training step: the seconds that its arithmetic and its memory traffic take at least.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.core.units import bytes_text, seconds_text
from scalewise.hardware.gpus import Gpu
from scalewise.predict.gpu_model import GpuModel, gpu_constants
from scalewise.predict.operators import MATRIX_KINDS, Operator

TOP = 5
"""Number of operators that are listed."""
LONG_WINDOW = 64
"""Elements of a convolution kernel from which on an FFT may need less arithmetic."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp64")


@dataclass(frozen=True)
class DeviceLimits:
    """Rates that no operator on a device exceeds."""

    device: str
    kind: Literal["achievable", "peak", "measured"]
    """achievable: what the largest matrix products and copies sustain on GPUs of this architecture. peak: the
    specification. measured: a matrix product and a copy timed on the device."""
    TFLOPS: Mapping[str, float]
    """Rate of matrix products by precision."""
    GBps: float
    """Memory bandwidth."""

    @property
    def meaning(self) -> str:
        if self.kind == "measured":
            return "measured now with one matrix product and one copy"
        if self.kind == "peak":
            return "the peaks of the specification"
        return "achievable, that is what the largest products and copies sustain within the power limit"


def achievable_limits(gpu: Gpu) -> DeviceLimits:
    """Return the rates that large matrix products and copies sustain on a GPU."""
    model = GpuModel(gpu, gpu_constants())
    rates = {precision: model.sustained_TFLOPS(precision) for precision in PRECISIONS}
    return DeviceLimits(gpu.name, "achievable", rates, model.sustained_GBps)


def peak_limits(gpu: Gpu) -> DeviceLimits:
    """Return the peaks of a GPU's specification."""
    model = GpuModel(gpu, gpu_constants())
    rates = {precision: model.peak_TFLOPS(precision) * model.boost for precision in PRECISIONS}
    return DeviceLimits(gpu.name, "peak", rates, gpu.memory_GBps)


@dataclass(frozen=True)
class OperatorCost:
    """All calls of one operator in a step, and the seconds that they take at least."""

    name: str
    phase: str
    kernels: float
    flops: float
    bytes: float
    seconds: float
    limited_by: Literal["compute", "memory"]

    def to_json(self, step_seconds: float) -> dict[str, Any]:
        return {
            "name": self.name,
            "phase": self.phase,
            "kernels": round(self.kernels),
            "flops": self.flops,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "share": self.seconds / step_seconds if step_seconds else 0.0,
            "limited_by": self.limited_by,
        }


@dataclass(frozen=True)
class Roofline:
    """Lower bound of the seconds of one training step on one device."""

    limits: DeviceLimits
    batch: int
    precision: str
    operators: tuple[OperatorCost, ...]
    """All operators, the most expensive first, with chains of element-wise operators fused as a compiler does it."""
    unfused_seconds: float
    """The bound without fusing: every operator reads its inputs from memory and writes its output there."""
    peak_seconds: float | None = None
    """The bound at the peaks of the specification; None without a specification."""

    direct_long_convolutions: bool = False
    """Whether convolutions with long kernels are counted as computed directly, which an FFT would shorten."""

    @property
    def seconds(self) -> float:
        return sum(operator.seconds for operator in self.operators)

    @property
    def compute_seconds(self) -> float:
        """Part of the bound in operators that are limited by arithmetic."""
        return sum(operator.seconds for operator in self.operators if operator.limited_by == "compute")

    def fraction(self, step_seconds: float) -> float:
        """Fraction of the bound's speed that a step of these seconds reaches."""
        return self.seconds / step_seconds

    def to_json(self, step_seconds: float | None = None) -> dict[str, Any]:
        rates = {name: round(rate, 4) for name, rate in self.limits.TFLOPS.items()}
        document = {
            "device": self.limits.device,
            "limits": {"kind": self.limits.kind, "TFLOPS": rates, "memory_GBps": self.limits.GBps},
            "batch": self.batch,
            "precision": self.precision,
            "seconds": self.seconds,
            "compute_seconds": self.compute_seconds,
            "memory_seconds": self.seconds - self.compute_seconds,
            "unfused_seconds": self.unfused_seconds,
            "peak_seconds": self.peak_seconds,
            "operators": [operator.to_json(self.seconds) for operator in self.operators[:TOP]],
        }
        if step_seconds is not None:
            document |= {"step_seconds": step_seconds, "fraction_reached": self.fraction(step_seconds)}
        return document

    def text(self, step_seconds: float | None = None) -> RenderableType:
        """Describe the bound, the fraction that is reached, and the most expensive operators."""
        rate = self.limits.TFLOPS[self.precision]
        lines = [
            Text.assemble(
                "Roofline: a step takes at least ",
                (seconds_text(self.seconds), "bold"),
                f" on {self.limits.device} (batch {self.batch:,}, {self.precision}): "
                f"{seconds_text(self.compute_seconds)} in compute-bound operators, "
                f"{seconds_text(self.seconds - self.compute_seconds)} in memory-bound ones.",
            )
        ]
        if step_seconds is not None:
            lines.append(
                Text.assemble(
                    f"A step of {seconds_text(step_seconds)} reaches ",
                    (f"{self.fraction(step_seconds):.0%}", "bold"),
                    " of that speed.",
                )
            )
        at_peak = "" if self.peak_seconds is None else f" At the specified peaks: {seconds_text(self.peak_seconds)}."
        lines.append(
            Text(
                f"Rates: {rate:.3g} TFLOPS in {self.precision}, {self.limits.GBps:,.4g} GB/s; {self.limits.meaning}."
                f"{at_peak} Element-wise operators are counted as fused; without fusing: "
                f"{seconds_text(self.unfused_seconds)}.",
                "dim",
            )
        )
        if self.direct_long_convolutions:
            lines.append(
                Text(
                    "Convolutions are counted as computed directly. Long kernels need less arithmetic by FFT, "
                    "so that a step can be faster than this bound.",
                    "dim",
                )
            )
        return Group(*lines, Text(), self._table())

    def _table(self) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("most expensive operators", overflow="fold")
        table.add_column("phase", no_wrap=True)
        for title in ("Gflops", "memory", "at least", "share"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("bound by", no_wrap=True)
        for operator in self.operators[:TOP]:
            table.add_row(
                operator.name,
                operator.phase,
                f"{operator.flops / 1e9:,.0f}" if operator.flops > 1e10 else f"{operator.flops / 1e9:.2f}",
                bytes_text(operator.bytes),
                seconds_text(operator.seconds),
                f"{operator.seconds / self.seconds:.0%}",
                operator.limited_by,
            )
        return table


def roofline_of(
    operators: Sequence[Operator],
    unfused: Sequence[Operator],
    limits: DeviceLimits,
    batch: int,
    precision: str,
    peak: DeviceLimits | None = None,
) -> Roofline:
    """Bound a step from its operators, given with chains of element-wise operators fused and without."""
    groups: dict[tuple[str, str], list[Operator]] = {}
    for operator in operators:
        groups.setdefault((_label(operator), operator.phase), []).append(operator)
    costs = [_cost(name, phase, members, limits) for (name, phase), members in groups.items()]
    return Roofline(
        limits,
        batch,
        precision,
        tuple(sorted(costs, key=lambda cost: -cost.seconds)),
        _seconds(unfused, limits),
        _seconds(operators, peak) if peak else None,
        any(math.prod(operator.window) >= LONG_WINDOW for operator in operators),
    )


def _label(operator: Operator) -> str:
    """Return 'convolution 3x3, weight gradient', or the name of the first operator of a fused chain."""
    name = operator.name.removeprefix("aten.").removesuffix(".default").lstrip("_").removesuffix("_backward")
    window = " " + "x".join(map(str, operator.window)) if operator.window else ""
    role = f", {operator.role}" if operator.role else ""
    name = name.replace("convolution", "conv")
    return f"{name}{window}{role}{' (fused)' if operator.kind == 'fused' else ''}"


def _cost(name: str, phase: str, members: Iterable[Operator], limits: DeviceLimits) -> OperatorCost:
    members = list(members)
    compute = sum(_seconds_of(one, limits) for one in members if _compute_seconds(one, limits) > _memory(one, limits))
    seconds = _seconds(members, limits)
    return OperatorCost(
        name,
        phase,
        sum(one.count * one.kernels for one in members),
        sum(one.count * one.flops for one in members),
        sum(one.count * one.bytes for one in members),
        seconds,
        "compute" if compute > seconds / 2 else "memory",
    )


def _seconds(operators: Iterable[Operator], limits: DeviceLimits) -> float:
    return sum(_seconds_of(operator, limits) for operator in operators)


def _seconds_of(operator: Operator, limits: DeviceLimits) -> float:
    """All calls of an operator take the longer of their arithmetic and their memory traffic."""
    return operator.count * max(_compute_seconds(operator, limits), _memory(operator, limits))


def _compute_seconds(operator: Operator, limits: DeviceLimits) -> float:
    return operator.flops / (limits.TFLOPS[operator.precision] * 1e12) if operator.kind in MATRIX_KINDS else 0.0


def _memory(operator: Operator, limits: DeviceLimits) -> float:
    return operator.bytes / (limits.GBps * 1e9)
