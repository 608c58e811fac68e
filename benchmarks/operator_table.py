"""Rows of the operators_fp32 table as operator records, for fitting the device model."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalewise.predict.gpu_model import Floats, OperatorTable
from scalewise.predict.operators import Kind, Operator

DEVICES = {
    "A100-PCIE-40GB": "a100-pcie-40gb",
    "A100-PCIE-80GB": "a100-pcie-80gb",
    "P100-PCIE-16GB": "p100-pcie-16gb",
    "P4": "p4",
    "T4": "t4",
    "V100-PCIE-32GB": "v100-pcie-32gb",
}
KINDS: dict[str, Kind] = {"softmax": "softmax", "layer_norm": "normalization"}
FLOOR_SECONDS = 1.5e-4
"""Shorter rows are left out, because they are mostly launch overhead of the measurement."""
ROWS_PER_PART = 1_200


@dataclass(frozen=True)
class TimedOperators:
    """Operators of one kind on one device with their measured seconds."""

    device: str
    operator: str
    table: OperatorTable
    seconds: Floats


def timed_operators(path: Path) -> list[TimedOperators]:
    """Return a sample of the table by device and operator, the same in every run."""
    parts: dict[tuple[str, str], list[tuple[Operator, float]]] = {}
    for row in _rows(path):
        seconds = float(row["forward_seconds"])
        if seconds >= FLOOR_SECONDS:
            parts.setdefault((DEVICES[row["device"]], row["operator"]), []).append((_operator(row), seconds))
    operators = []
    for (device, name), rows in sorted(parts.items()):
        chosen = np.random.default_rng(0).permutation(len(rows))[:ROWS_PER_PART]
        table = OperatorTable.of([rows[index][0] for index in chosen])
        operators.append(TimedOperators(device, name, table, np.array([rows[index][1] for index in chosen])))
    return operators


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") as lines:
        yield from csv.DictReader(lines)


def _operator(row: dict[str, str]) -> Operator:
    def number(column: str) -> int:
        return int(float(row[column]))

    name = row["operator"]
    if name in ("bmm", "linear"):
        batch, m, n, k = (number(column) for column in ("batch", "m", "n", "k"))
        if name == "linear":  # (batch, m, n) to k features
            shape, read = (1, batch * m, k, n), 4 * (batch * m * n + n * k + k)
        else:
            shape, read = (batch, m, k, n), 4 * batch * (m * n + n * k)
        return Operator(name, "matmul", "forward", "fp32", 2 * batch * m * n * k, read, 4 * batch * m * k, shape=shape)
    if name == "conv":
        batch, inputs, outputs, kernel, image, stride, padding = (
            number(column)
            for column in ("batch", "in_channels", "out_channels", "kernel", "image", "stride", "padding")
        )
        side = (image + 2 * padding - kernel) // stride + 1
        positions = batch * side * side
        return Operator(
            name,
            "conv",
            "forward",
            "fp32",
            2 * positions * outputs * inputs * kernel**2,
            4 * (batch * inputs * image**2 + outputs * inputs * kernel**2),
            4 * positions * outputs,
            shape=(1, positions, outputs, inputs * kernel**2),
            window=(kernel, kernel),
            image=(side, side),
            stride=stride,
        )
    elements = number("batch") * number("features")
    operands = 2 if name in ("add", "divide", "multiply", "power") else 1
    return Operator(
        name, KINDS.get(name, "elementwise"), "forward", "fp32", elements, 4 * operands * elements, 4 * elements
    )
