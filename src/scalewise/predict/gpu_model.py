"""Predict the seconds of every operator on a GPU from its specification. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalewise.hardware.gpus import Gpu
from scalewise.predict.operators import MATRIX_KINDS, Operator

Quality = Literal["measured", "calibrated", "scaled", "specification"]
"""Origin of a predicted step time, from the most accurate to the least accurate.

measured: profile of this device. calibrated: specification, corrected by one measured step of any model on this device.
scaled: profile of another device, operator by operator. specification: nothing was measured.
"""
Family = Literal["cnn", "transformer", "host-bound", "other"]

UNKNOWN_OPERATORS = 2.0
"""Relative widening of the interval (in log space) if all bytes belong to unknown operators; less in proportion."""
HOST_SHARE = {"specification": 0.5, "calibrated": 0.5, "scaled": 0.0}
"""Relative widening of the interval (in log space) where the host needs as long as the GPU; less in proportion."""
MEASURED = 1.05
"""Interval of a time from a profile of the same device, as a factor up and down."""


@cache
def gpu_constants_document() -> dict[str, Any]:
    """Content of gpu_constants.json: constants, corrections and intervals, with those for leave-one-out scores."""
    text = (files(__package__) / "gpu_constants.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def gpu_constants(without: str | None = None) -> dict[str, float]:
    """Return the constants fitted to all tables, or to all but the table or GPU `without`, for scores on it."""
    document = gpu_constants_document()
    corrections = document["corrections"] if without is None else document["without"][without]
    return {**document["constants"], **corrections}


def fitted_on() -> str:
    """Sentence that names the constants and the tables that they were fitted to."""
    return str(gpu_constants_document()["fitted_on"])


@dataclass(frozen=True)
class Interval:
    """90 % interval as factors of the prediction."""

    low: float
    high: float

    def widened(self, power: float) -> Interval:
        return Interval(self.low**power, self.high**power)


def interval(
    quality: Quality,
    family: Family,
    precision: str,
    without: str | None = None,
    unknown_share: float = 0.0,
    host_share: float = 0.0,
) -> Interval:
    """Interval from the leave-one-out scores of this quality, operator family and precision.

    `without` leaves the named table's own scores out. A family without scores gets the widest interval of the other
    families with as many bits. `host_share`: the host's seconds divided by the GPU's, at most 1.
    """
    document = gpu_constants_document()
    table = document["intervals_without"].get(without) or document["intervals"]
    units = "16" if precision in ("fp16", "bf16") else "32"
    if quality == "measured":
        return Interval(1 / MEASURED, MEASURED)
    rows = table[quality]
    if family == "host-bound":
        return Interval(1 / rows[family], rows[family])
    factor = rows.get(f"{family} {units}") or max(value for name, value in rows.items() if name.endswith(units))
    widening = (1 + UNKNOWN_OPERATORS * unknown_share) * (1 + HOST_SHARE[quality] * host_share)
    return Interval(1 / factor, factor).widened(widening)


Floats = NDArray[np.float64]
Execution = Literal["eager", "graph", "compiled"]
Constants = Mapping[str, float]

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (128, 32), (16, 32))
"""Rows and columns of the output that one multiprocessor computes at a time; also transposed."""
SPLITS = (1, 2, 4, 8, 16, 32)
"""Possible numbers of parts of the inner dimension, which is split so that small products use the whole GPU."""
TENSOR_PRECISIONS = ("tf32", "bf16", "fp16")


@dataclass(frozen=True)
class OperatorTable:
    """Operators as columns, for vectorised computation."""

    kinds: NDArray[np.str_]
    precisions: NDArray[np.str_]
    roles: NDArray[np.str_]
    flops: Floats
    bytes: Floats
    kernels: Floats
    calls: Floats
    counts: Floats
    shapes: Floats
    """One row (batch, m, n, k) per operator; ones for operators without a shape."""
    window: Floats
    """Elements of the convolution kernel."""
    window_length: Floats
    """Longest side of the convolution kernel."""
    image: Floats
    """Height and width of the convolution's output."""
    stride: Floats
    channels_last: NDArray[np.bool_]
    backward: NDArray[np.bool_]

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> OperatorTable:
        def column(values: Sequence[float]) -> Floats:
            return np.array(values, dtype=np.float64)

        shapes = np.ones((len(operators), 4))
        for row, operator in enumerate(operators):
            if operator.shape:
                shapes[row] = operator.shape
        return cls(
            kinds=np.array([operator.kind for operator in operators], dtype=np.str_),
            precisions=np.array([operator.precision for operator in operators], dtype=np.str_),
            roles=np.array([operator.role for operator in operators], dtype=np.str_),
            flops=column([operator.flops for operator in operators]),
            bytes=column([operator.bytes for operator in operators]),
            kernels=column([operator.kernels for operator in operators]),
            calls=column([operator.calls for operator in operators]),
            counts=column([operator.count for operator in operators]),
            shapes=np.maximum(shapes, 1.0),
            window=column([float(np.prod(operator.window)) if operator.window else 1.0 for operator in operators]),
            window_length=column([float(max(operator.window, default=1)) for operator in operators]),
            image=np.array([(*operator.image, 1.0, 1.0)[:2] for operator in operators], dtype=np.float64).reshape(
                -1, 2
            ),
            stride=column([float(operator.stride) for operator in operators]),
            channels_last=np.array([operator.channels_last for operator in operators], dtype=np.bool_),
            backward=np.array([operator.phase == "backward" for operator in operators], dtype=np.bool_),
        )


@dataclass(frozen=True)
class StepEstimate:
    """Seconds of one step on one device."""

    gpu_seconds: float
    host_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of the slower of GPU and host, because the host launches kernels ahead of the GPU."""
        return max(self.gpu_seconds, self.host_seconds)

    @property
    def host_bound(self) -> bool:
        return self.host_seconds > self.gpu_seconds

    @property
    def host_share(self) -> float:
        """Host seconds divided by GPU seconds, at most 1. Above one half, the GPU now and then waits for the host."""
        return min(self.host_seconds / self.gpu_seconds, 1.0) if self.gpu_seconds else 1.0


class GpuModel:
    """Predicts the seconds of operators on one GPU.

    Matrix products take the fastest of several tile shapes, limited by the multiprocessors, the power limit and the
    memory; all other operators take the time to move their bytes.
    """

    def __init__(self, gpu: Gpu, constants: Constants, power_W: float | None = None) -> None:
        self.gpu, self.constants = gpu, constants
        self.power_W = power_W if power_W is not None else gpu.tdp_W
        self.boost = constants["consumer_boost"] if gpu.consumer else 1.0

    def peak_TFLOPS(self, precision: str) -> float:
        """Specified peak of matrix products in this precision; without a unit for it, the peak of the fallback."""
        gpu = self.gpu
        if precision == "fp64":
            return gpu.fp32_TFLOPS / (2 if gpu.memory_type == "HBM" else 32)
        special = {"tf32": gpu.tf32_TFLOPS, "fp16": gpu.fp16_TFLOPS, "bf16": gpu.bf16_TFLOPS}.get(precision)
        if special:
            return special
        return gpu.fp32_TFLOPS * (2.0 if precision == "fp16" and gpu.name.startswith("P100") else 1.0)

    def uses_tensor_cores(self, precision: str) -> bool:
        return precision in TENSOR_PRECISIONS and self.peak_TFLOPS(precision) > self.gpu.fp32_TFLOPS * 0.99 + 0.2

    def sustained_TFLOPS(self, precision: str) -> float:
        """Throughput of the largest matrix products: a fraction of the peak, limited by the power limit."""
        peak = self.peak_TFLOPS(precision) * self.boost
        tensor = self.uses_tensor_cores(precision)
        fraction = self._architecture("tensor_fraction" if tensor else "matmul_fraction")
        if self.power_W is None:
            return peak * fraction
        watts = self._architecture("watts_per_tensor_TFLOP" if tensor else "watts_per_TFLOP")
        watts *= 2.0 if tensor and precision == "tf32" else 1.0
        return min(peak * fraction, self.power_W / watts)

    def _architecture(self, name: str) -> float:
        return self.constants[f"{name}.{self.gpu.architecture}"]

    @property
    def sustained_GBps(self) -> float:
        return self.gpu.memory_GBps * self._architecture("memory_fraction")

    def operator_seconds(self, table: OperatorTable, execution: Execution = "eager") -> Floats:
        """GPU seconds of one call of every operator."""
        seconds = self._memory_seconds(table)
        for precision in np.unique(table.precisions):
            chosen = np.isin(table.kinds, list(MATRIX_KINDS)) & (table.precisions == precision)
            if not chosen.any():
                continue
            seconds[chosen] = np.maximum(seconds[chosen], self._arithmetic_seconds(table, chosen, str(precision)))
        if execution != "compiled":  # compilers choose the layout that the units need
            seconds += self._layout_seconds(table)
        seconds *= self._corrections(table)
        gap = self.constants["kernel_us"] if execution == "eager" else self.constants["graph_kernel_us"]
        return seconds + table.kernels * gap * 1e-6

    def step(self, table: OperatorTable, execution: Execution = "eager", host_us: float | None = None) -> StepEstimate:
        """Predict one training step. `host_us` is the host's time per operator call."""
        host = self.constants["host_us"] if host_us is None else host_us
        host *= {"eager": 1.0, "compiled": self.constants["host_compiled"], "graph": 0.0}[execution]
        gpu_seconds = float((self.operator_seconds(table, execution) * table.counts).sum())
        return StepEstimate(gpu_seconds, self.host_calls(table) * host * 1e-6)

    def host_calls(self, table: OperatorTable) -> float:
        """Operator calls of one step; those of backward count less, because no Python runs between them."""
        weights = np.where(table.backward, self.constants["host_backward"], 1.0)
        return float((table.calls * table.counts * weights).sum())

    def correction_classes(self, table: OperatorTable) -> NDArray[np.str_]:
        """Class of every operator: its kind; for products also the units, and for convolutions the window and role."""
        tensor = np.isin(table.precisions, [name for name in TENSOR_PRECISIONS if self.uses_tensor_cores(name)])
        classes = np.array(table.kinds, dtype="<U48")
        matrix = np.isin(table.kinds, list(MATRIX_KINDS))
        classes[matrix & tensor] = np.char.add(classes[matrix & tensor], " tensor")
        conv = table.kinds == "conv"
        grouped = conv & (table.shapes[:, 0] > 1)
        depthwise, half = _depthwise(table), np.isin(table.precisions, ["fp16", "bf16"])
        plain = conv & ~grouped
        window = np.where(table.window == 1, " 1x1 ", np.where(_three_by_three(table), " 3x3 ", " window "))
        roles = np.where(table.roles == "", "forward", table.roles)
        classes[plain] = np.char.add(np.char.add(classes, window), roles)[plain]
        classes[grouped] = np.where(tensor, "grouped tensor", "grouped")[grouped]
        classes[depthwise] = np.where(half, "depthwise 16", "depthwise")[depthwise]
        return classes

    def _corrections(self, table: OperatorTable) -> Floats:
        """Fitted factors by class of operator and, for products, by architecture; 1 where nothing was fitted."""
        constants, factors = self.constants, np.ones_like(table.bytes)
        classes = self.correction_classes(table)
        for name in np.unique(classes):
            factors[classes == name] = constants.get(f"correction.{name}", 1.0)
        architectures = self.architecture_classes(table)
        for name in np.unique(architectures):
            if name:
                factors[architectures == name] *= constants.get(f"correction.{name}", 1.0)
        return factors

    def architecture_classes(self, table: OperatorTable) -> NDArray[np.str_]:
        """'Volta plain' or 'Volta tensor units' for matrix products; empty for the rest."""
        classes = np.full(len(table.bytes), "", dtype="<U48")
        for precision in np.unique(table.precisions):
            units = "tensor units" if self.uses_tensor_cores(str(precision)) else "plain"
            chosen = np.isin(table.kinds, list(MATRIX_KINDS)) & (table.precisions == precision)
            classes[chosen] = f"{self.gpu.architecture} {units}"
        return classes

    def _memory_seconds(self, table: OperatorTable) -> Floats:
        """Time to move the bytes; small operators find part of them in the L2 cache."""
        rate = self.sustained_GBps * 1e9
        cached = np.clip(self.gpu.l2_MB * 1e6 / np.maximum(table.bytes, 1.0), 0.0, 1.0)
        rates = rate * (1.0 + self.constants["l2_gain"] * cached)
        return table.bytes / rates

    def _layout_seconds(self, table: OperatorTable) -> Floats:
        """Conversion of images in NCHW to the layout that tensor cores need, and back."""
        passes = np.zeros_like(table.bytes)
        for precision in TENSOR_PRECISIONS:
            if self.uses_tensor_cores(precision):
                wanted = (table.kinds == "conv") & (table.precisions == precision) & ~table.channels_last
                passes[wanted & (table.shapes[:, 0] == 1)] = self.constants["nchw_passes"]
        return passes * table.bytes / (self.sustained_GBps * 1e9)

    def _arithmetic_seconds(self, table: OperatorTable, chosen: NDArray[np.bool_], precision: str) -> Floats:
        seconds = self._tiled_seconds(table, chosen, precision)
        if precision == "tf32" and self.uses_tensor_cores("tf32"):
            seconds = np.minimum(seconds, self._tiled_seconds(table, chosen, "fp32"))
        return seconds

    def _tiled_seconds(self, table: OperatorTable, chosen: NDArray[np.bool_], precision: str) -> Floats:
        constants = self.constants
        kinds, shapes, flops = table.kinds[chosen], table.shapes[chosen], table.flops[chosen]
        rate = self.sustained_TFLOPS(precision) * 1e12
        best = self._product_seconds(shapes, precision)
        conv, attention, recurrent = kinds == "conv", kinds == "attention", kinds == "recurrent"
        if conv.any():
            best[conv] = self._convolution_seconds(table, chosen, best, precision)[conv]
        depthwise = _depthwise(table)[chosen]
        best[depthwise] = flops[depthwise] / (self.gpu.fp32_TFLOPS * 1e12 * constants["depthwise_fraction"])
        best[attention] = flops[attention] / (rate * constants["attention_fraction"])
        if recurrent.any():  # (steps, rows, columns, k): the steps follow each other
            one_step = flops[recurrent] / shapes[recurrent, 0] / (rate * constants["recurrent_fraction"])
            best[recurrent] = shapes[recurrent, 0] * (one_step + constants["recurrent_step_us"] * 1e-6)
        return best

    def _product_seconds(self, shapes: Floats, precision: str) -> Floats:
        """Matrix products (batch, m, n, k) with the fastest tile shape and split of the inner dimension."""
        constants, tensor = self.constants, self.uses_tensor_cores(precision)
        per_multiprocessor = self.sustained_TFLOPS(precision) * 1e12 / self.gpu.multiprocessors
        batch, m, n, k = shapes.T
        ramp = constants["tensor_ramp"] if tensor else constants["ramp"]
        waste = constants["tensor_small_tile"] if tensor else constants["small_tile"]
        latency = constants["tensor_wave_us" if tensor else "wave_us"] * 1e-6
        best = np.full(len(m), np.inf)
        for rows, columns in {tile for pair in TILES for tile in (pair, pair[::-1])}:
            tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
            efficiency = min(1.0 / (1.0 + waste * (1.0 / rows + 1.0 / columns - 1 / 64)), 1.0)
            for split in SPLITS:
                part = np.ceil(k / split)
                waves = np.ceil(tiles * split / self.gpu.multiprocessors)
                time = waves * (2.0 * rows * columns * (part + ramp) / (per_multiprocessor * efficiency) + latency)
                if split > 1:  # partial results are written and added up
                    time = time + 4.0 * batch * m * n * (split + 1) / (self.sustained_GBps * 1e9)
                best = np.minimum(best, np.where(part >= 16, time, np.inf) if split > 1 else time)
        return best

    def _convolution_seconds(
        self, table: OperatorTable, chosen: NDArray[np.bool_], products: Floats, precision: str
    ) -> Floats:
        """Convolutions from the time of their matrix product: slower directly, faster by Winograd's algorithm."""
        constants = self.constants
        window, length = table.window[chosen], table.window_length[chosen]
        stride, shapes = table.stride[chosen], table.shapes[chosen]
        tensor = self.uses_tensor_cores(precision)
        small = _three_by_three(table)[chosen]
        factor = np.where(window == 1, 1.0, constants["conv_window"])
        if not tensor:
            five = (window == 25) & (length == 5) & (stride == 1)  # by Fourier transforms or Winograd's algorithm
            factor = np.where(small, constants["conv_direct"], np.where(five, constants["conv_5x5"], factor))
        factor = factor * np.where(length > 11, constants["long_window"], 1.0)
        seconds = products * factor / self._architecture("conv_fraction")
        possible = small & (stride == 1) & (shapes[:, 0] == 1)
        if not tensor and possible.any() and self.gpu.architecture not in ("Hopper", "Blackwell"):
            seconds[possible] = np.minimum(
                seconds[possible], self._winograd_seconds(table, chosen, precision)[possible]
            )
        return seconds

    def _winograd_seconds(self, table: OperatorTable, chosen: NDArray[np.bool_], precision: str) -> Floats:
        """3x3 convolutions by Winograd's algorithm with outputs of 2 x 2 or 4 x 4: fewer products, more passes."""
        shapes, image = table.shapes[chosen], table.image[chosen]
        weights = table.roles[chosen] == "weight gradient"
        positions = np.where(weights, shapes[:, 3], shapes[:, 1])
        inputs = np.where(weights, shapes[:, 1], shapes[:, 3]) / 9
        outputs = shapes[:, 2]
        best = np.full(len(positions), np.inf)
        for side in (2, 4):
            rounded = np.ceil(image / side).prod(axis=1) / image.prod(axis=1)
            tiles, points = positions * rounded, (side + 2.0) ** 2
            ones = np.ones_like(tiles)
            rows = np.where(weights, inputs, tiles)
            inner = np.where(weights, tiles, inputs)
            products = self._product_seconds(
                np.stack([ones * points, rows, outputs, np.maximum(inner, 1)], 1), precision
            )
            transforms = 4.0 * points * tiles * (inputs + outputs) * self.constants[f"winograd_passes_{side}"]
            seconds = products * self.constants[f"winograd_{side}"] + transforms / (self.sustained_GBps * 1e9)
            best = np.minimum(best, seconds)
        return best / self._architecture("conv_fraction")


def _three_by_three(table: OperatorTable) -> NDArray[np.bool_]:
    return np.asarray((table.window == 9) & (table.window_length == 3), dtype=np.bool_)


def _depthwise(table: OperatorTable) -> NDArray[np.bool_]:
    """Grouped convolutions with one input or output channel per group."""
    single = (table.shapes[:, 1:] <= table.window[:, None]).any(axis=1)
    return np.asarray((table.kinds == "conv") & (table.shapes[:, 0] > 1) & single, dtype=np.bool_)
