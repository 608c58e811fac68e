"""Fit the constants of the GPU model and write them, with intervals from their leave-one-out scores.

    python benchmarks/fit_gpu_model.py operators_fp32.csv.gz src/scalewise/predict/gpu_constants.json
    python benchmarks/fit_gpu_model.py src/scalewise/predict/gpu_constants.json    # only the intervals again

The operator table is read by path, because it is too large to ship. The whole-model tables come with the package. Takes
some minutes on one core.

Two stages. First, fractions of peak and bandwidth from single operators, by coordinate descent. Second, one correction
factor per class of operator and per architecture from whole training steps, by a ridge regression in log space in which
every host has a bias of its own. The second stage runs again without each GPU of one_gpu_torchvision and without each
other table; these are the constants that `validate` scores with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from operator_table import TimedOperators, timed_operators
from scalewise.hardware.gpus import gpu_named
from scalewise.predict.gpu_model import HOST_SHARE, GpuModel, OperatorTable, gpu_constants_document
from scalewise.published.gpu_steps import OneGpuCell, one_gpu_tables
from scalewise.validation.one_gpu import (
    Prediction,
    calibrated,
    gpu_of,
    scaled,
    scored_table,
    specified,
    with_measured_host,
)
from scalewise.validation.one_gpu_scores import one_gpu_grid, one_gpu_scores

ARCHITECTURES = (
    "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA2", "CDNA3",
)  # fmt: skip
START: dict[str, float] = {
    "consumer_boost": 1.12,
    "kernel_us": 2.2,
    "graph_kernel_us": 1.3,
    "host_us": 25.0,
    "l2_gain": 0.7,
    "nchw_passes": 2.0,
    "ramp": 16.0,
    "tensor_ramp": 128.0,
    "small_tile": 40.0,
    "tensor_small_tile": 40.0,
    "wave_us": 1.0,
    "tensor_wave_us": 1.4,
    "attention_fraction": 0.6,
    "depthwise_fraction": 0.1,
    "recurrent_fraction": 0.3,
    "recurrent_step_us": 8.0,
    "conv_direct": 1.3,
    "conv_window": 1.2,
    "conv_5x5": 0.6,
    "host_backward": 0.3,
    "host_compiled": 0.2,
    "long_window": 2.0,
    "winograd_2": 2.0,
    "winograd_4": 1.4,
    "winograd_passes_2": 0.5,
    "winograd_passes_4": 0.6,
}
"""Starting values. Constants that no stage fits keep them; they come from a prototype and from vendors' figures."""


def by_architecture(*values: float) -> dict[str, float]:
    return dict(zip(ARCHITECTURES, values, strict=True))


BY_ARCHITECTURE: dict[str, dict[str, float]] = {
    "matmul_fraction": by_architecture(0.5, 0.75, 0.75, 0.96, 0.9, 0.96, 0.9, 0.87, 0.87, 0.6, 0.6),
    "tensor_fraction": by_architecture(1, 1, 1, 0.88, 0.88, 0.88, 0.88, 0.82, 0.8, 0.6, 0.52),
    "conv_fraction": dict.fromkeys(ARCHITECTURES, 1.0),
    "memory_fraction": by_architecture(0.7, 0.72, 0.7, 0.83, 0.7, 0.77, 0.8, 0.86, 0.86, 0.7, 0.7),
    "watts_per_tensor_TFLOP": by_architecture(9, 9, 9, 2.2, 2.6, 1.1, 1.35, 0.96, 0.63, 2.2, 1.15),
    "watts_per_TFLOP": by_architecture(32, 28, 24, 16, 16, 14.6, 6.5, 11, 8, 8, 4.5),
}
FITTED_ARCHITECTURES = ("Pascal", "Volta", "Turing", "Ampere")
RIDGE = {"correction": 0.35, "architecture": 0.3, "host": 0.2, "operators": 0.04}
"""Prior standard deviations of the logarithms; `operators` for classes that the first stage fitted well."""
FIRST_STAGE = {"matmul", "matmul tensor", "attention", "attention tensor", "elementwise", "copy"}
CELL_SIGMA = 0.15
FEW_TABLES = {"specification": 0.0, "calibrated": 0.0, "scaled": 0.5}
"""Share by which an interval from one table alone is widened (in log space); half of it with two tables. Scaled cells
are pairs of GPUs, so a table has few independent ones."""
NO_INTERVALS = {
    quality: {"host-bound": 1.0, "cnn 32": 1.0, "cnn 16": 1.0} for quality in ("specification", "calibrated", "scaled")
}
"""Intervals while the scores are computed from which the intervals follow."""


def start() -> dict[str, float]:
    return {**START, **{f"{name}.{key}": value for name, row in BY_ARCHITECTURE.items() for key, value in row.items()}}


def operator_error(parts: Sequence[TimedOperators], constants: dict[str, float], names: Callable[[str], bool]) -> float:
    errors = []
    for part in parts:
        if names(part.operator):
            model = GpuModel(gpu_named(part.device), constants)
            logs = np.abs(np.log(model.operator_seconds(part.table) / part.seconds))
            errors.append(float(np.minimum(logs, 1.0).mean()))
    return float(np.mean(errors))


def fit_operators(parts: Sequence[TimedOperators]) -> dict[str, float]:
    """Coordinate descent, one group of constants after another."""
    products = ("bmm", "linear", "conv")
    matmul = [f"{name}.{key}" for name in ("matmul_fraction",) for key in FITTED_ARCHITECTURES]
    stages: list[tuple[list[str], Callable[[str], bool]]] = [
        (
            [f"memory_fraction.{key}" for key in FITTED_ARCHITECTURES] + ["l2_gain"],
            lambda name: name not in (*products, "softmax", "layer_norm"),
        ),
        (
            [*matmul, "watts_per_TFLOP.Pascal", "watts_per_TFLOP.Turing", "ramp", "small_tile", "wave_us"],
            lambda name: name in ("bmm", "linear"),
        ),
        (
            [f"conv_fraction.{key}" for key in FITTED_ARCHITECTURES]
            + ["conv_direct", "winograd_2", "winograd_4", "winograd_passes_2", "winograd_passes_4"],
            lambda name: name == "conv",
        ),
    ]
    constants = start()
    for keys, names in stages:
        best = operator_error(parts, constants, names)
        for step in (0.25, 0.12, 0.06):
            for key in keys:
                for factor in (1 + step, 1 / (1 + step), (1 + step) ** 2, (1 + step) ** -2):
                    changed = {**constants, key: constants[key] * factor}
                    limit = 0.98 if "fraction" in key and "conv" not in key else np.inf
                    error = operator_error(parts, changed, names)
                    if changed[key] <= limit and error < best - 1e-5:
                        best, constants = error, changed
        print(f"operators: {best:.3f} mean log error", {key: round(constants[key], 3) for key in keys}, flush=True)
    return constants


@dataclass(frozen=True)
class PricedCell:
    """One measured step and the seconds that the uncorrected model gives to each class of operator."""

    cell: OneGpuCell
    parts: dict[str, float]
    fixed: float
    calls: float


def priced_cells(constants: dict[str, float]) -> list[PricedCell]:
    priced = []
    for cells in one_gpu_tables().values():
        for cell in cells:
            table = OperatorTable.of(cell.operator_list())
            model = GpuModel(gpu_of(cell), constants, cell.power_W)
            seconds = model.operator_seconds(table, cell.execution) * table.counts
            gap = constants["kernel_us" if cell.execution == "eager" else "graph_kernel_us"] * 1e-6
            gaps = table.kernels * table.counts * gap
            classes = model.correction_classes(table)
            architectures = model.architecture_classes(table)
            parts: dict[str, float] = {}
            for name, architecture, value in zip(classes, architectures, seconds - gaps, strict=True):
                key = f"{name}|{architecture}"
                parts[key] = parts.get(key, 0.0) + float(value)
            fixed = float(gaps.sum()) + cell.transfer_seconds
            priced.append(PricedCell(cell, parts, fixed, model.host_calls(table)))
    return priced


def host_microseconds(cells: Sequence[PricedCell]) -> dict[str, float]:
    """Return the host time per call of every host, from its cell with the most calls per second of GPU work."""
    microseconds = {}
    for host in {priced.cell.host for priced in cells}:
        own = [priced for priced in cells if priced.cell.host == host]
        heaviest = max(own, key=lambda priced: priced.calls / (sum(priced.parts.values()) + priced.fixed))
        microseconds[host] = heaviest.cell.seconds / heaviest.calls * 1e6
    return microseconds


def fit_corrections(cells: Sequence[PricedCell], hosts: dict[str, float]) -> dict[str, float]:
    """Ridge regression of the log errors on the shares of time, re-weighted so that outliers count less."""
    used = [
        priced
        for priced in cells
        if priced.cell.execution != "eager"
        or sum(priced.parts.values()) + priced.fixed > 1.1 * priced.calls * hosts[priced.cell.host] * 1e-6
    ]
    names = sorted({name for priced in used for key in priced.parts for name in key.split("|") if name})
    machines = sorted({priced.cell.host for priced in used})
    column = {name: number for number, name in enumerate(names)}
    logs = np.zeros(len(names) + len(machines))
    prior = np.array([RIDGE[_prior(name)] for name in names] + [RIDGE["host"]] * len(machines))
    sizes: dict[str, int] = {}
    for priced in used:
        sizes[priced.cell.table] = sizes.get(priced.cell.table, 0) + 1
    weights = np.array([min(1.0, 60.0 / sizes[priced.cell.table]) for priced in used])
    measured = np.array([priced.cell.seconds for priced in used])
    for _ in range(30):
        shares = np.zeros((len(used), len(logs)))
        predicted = np.zeros(len(used))
        for row, priced in enumerate(used):
            total = priced.fixed
            for key, seconds in priced.parts.items():
                columns = [column[name] for name in key.split("|") if name]
                value = seconds * float(np.exp(logs[columns].sum()))
                shares[row, columns] += value
                total += value
            shares[row] /= total
            host = len(names) + machines.index(priced.cell.host)
            shares[row, host] = 1.0
            predicted[row] = total * np.exp(logs[host])
        residual = np.log(measured / predicted)
        robust = weights / np.maximum(np.abs(residual) / CELL_SIGMA, 1.0) / CELL_SIGMA**2
        normal = (shares * robust[:, None]).T @ shares + np.diag(1 / prior**2)
        change = np.linalg.solve(normal, (shares * robust[:, None]).T @ residual - logs / prior**2)
        logs += 0.7 * np.clip(change, -0.3, 0.3)
    return {f"correction.{name}": round(float(np.exp(logs[column[name]])), 4) for name in names}


def _prior(name: str) -> str:
    if name in FIRST_STAGE:
        return "operators"
    return "architecture" if name.endswith((" plain", " units")) else "correction"


def folds(cells: Sequence[PricedCell]) -> dict[str, list[PricedCell]]:
    """Return the cells that are fitted when one GPU or one table is left out, by its name."""
    names = {gpu_named(priced.cell.gpu).name for priced in cells if priced.cell.table == "one_gpu_torchvision"}
    kept_cells = {
        name: [priced for priced in cells if gpu_named(priced.cell.gpu).name != name] for name in sorted(names)
    }
    for table in sorted({priced.cell.table for priced in cells} - {"one_gpu_torchvision"}):
        kept_cells[table] = [priced for priced in cells if priced.cell.table != table]
    return kept_cells


def intervals(skip: str | None = None) -> dict[str, dict[str, float]]:
    """Return 90 % factors by quality, family and bits, from the leave-one-out scores of all tables but `skip`.

    Every table has the same weight.
    """
    logs: dict[str, dict[str, dict[str, list[float]]]] = {"specification": {}, "calibrated": {}, "scaled": {}}
    for name in one_gpu_tables():
        if name == skip:
            continue
        cells = scored_table(name)
        if name == "one_gpu_torchvision":
            every = with_measured_host(cells)
            cells = [scored for scored in every if not scored.estimate.host_bound]
            logs["calibrated"]["host-bound"] = {
                name: [abs(float(np.log(s.seconds / s.cell.seconds))) for s in every if s.estimate.host_bound]
            }
        predictions: dict[str, list[Prediction]] = {
            "specification": specified(cells),
            "calibrated": calibrated(cells),
            "scaled": scaled(cells),
        }
        for quality, scored_ones in predictions.items():
            for one in scored_ones:
                family = f"{one.scored.family} {'16' if one.scored.half else '32'}"
                errors = logs[quality].setdefault(family, {}).setdefault(name, [])
                widening = 1 + HOST_SHARE[quality] * one.scored.estimate.host_share  # `interval` widens by as much
                errors.append(abs(float(np.log(one.seconds / one.measured))) / widening)
    return {
        quality: {
            family: round(float(np.exp(_pooled_quantile(tables) * (1 + FEW_TABLES[quality] / len(tables)))), 3)
            for family, tables in families.items()
        }
        for quality, families in logs.items()
    }


def _pooled_quantile(tables: dict[str, list[float]]) -> float:
    """Return the 90 % quantile of the errors, with equal weights of tables; larger for few cells."""
    values = [(error, 1 / len(errors)) for errors in tables.values() for error in errors]
    limit = 0.9 * (1 + 1 / min(map(len, tables.values()))) * len(tables)
    total, quantile = 0.0, 0.0
    for error, weight in sorted(values):
        quantile = error
        total += weight
        if total >= limit:
            break
    return quantile


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    gpu_constants_document.cache_clear()


def main() -> None:
    path = Path(sys.argv[-1])
    document = gpu_constants_document() if len(sys.argv) == 2 else fitted_document(Path(sys.argv[1]))
    write(path, {**document, "intervals": NO_INTERVALS, "intervals_without": {}})
    document["intervals"] = intervals()
    document["intervals_without"] = {name: intervals(name) for name in one_gpu_tables()}
    write(path, document)
    Console().print(one_gpu_grid(one_gpu_scores()))


def fitted_document(operators: Path) -> dict[str, Any]:
    """Fit constants and corrections; the intervals are still missing."""
    constants = fit_operators(timed_operators(operators))
    cells = priced_cells(constants)
    hosts = host_microseconds(cells)
    eager = [hosts[host] for host in {p.cell.host for p in cells if p.cell.table == "one_gpu_torchvision"}]
    constants["host_us"] = float(np.median(eager))
    return {
        "fitted_on": "operators: operators_fp32 (NeuSight; P4, P100, T4, V100, A100; rows of 150 us "
        "or more). corrections: "
        "one_gpu_torchvision, one_gpu_cnn, tensorflow_2017, one_gpu_transformers, torchtitan, with one bias per "
        "host. 'without' holds the corrections fitted without that GPU or table. Ada, Hopper, Blackwell and AMD: "
        "no operator was fitted; fractions follow the prototype and achievable_matmul. Chosen by hand while "
        "looking at the scores of these tables, in every fold alike: nchw_passes, conv_5x5, conv_window, "
        "host_backward, the widths of the priors, the widening of intervals by the host's share and for few tables, "
        "the share of a measured bias that is kept, watts per tensor TFLOP, and the Kepler fraction. host_us: median "
        "over the torchvision hosts.",
        "constants": {key: round(value, 5) for key, value in constants.items()},
        "corrections": fit_corrections(cells, hosts),
        "without": {name: fit_corrections(chosen, hosts) for name, chosen in folds(cells).items()},
    }


if __name__ == "__main__":
    main()
