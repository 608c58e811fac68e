"""One step of a model whose layers are cut: how much of it a device computes, and what is added up when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from scalewise.plan import Footprint, Matrix
from scalewise.strategies.cuts import Cut

NARROW = 12
"""Columns or rows that a layer costs beyond its own: lanes that stay empty, and the side that is not cut. A half of 8,
16, 32 and 64 channels of a convolution took 0.86, 0.70, 0.78 and 0.52 of the whole (one core, torch 2.13)."""

CUT_CALLS, SUM_CALLS = 10, 80
"""To a device, as DTensor makes them: for a layer that is cut, each way, and to hand a sum of parts to the host."""


@dataclass(frozen=True)
class Sum:
    """An all-reduce between the devices that share a model, of so many bytes per sample."""

    at: float
    """How much the device has computed of the phase by then; 1 is all that a device alone would compute."""
    bytes: int


@dataclass(frozen=True)
class Pass:
    """Forward or backward on the device with the largest parts."""

    sums: tuple[Sum, ...]
    share: float
    """Of what a device alone would compute."""


def forward_pass(matrices: Sequence[Matrix], cuts: Mapping[str, Cut]) -> Pass:
    """What rows put out is added up."""
    sums: list[Sum] = []
    done = 0.0
    for matrix, share in _shares(matrices, cuts):
        done += share
        if _role(matrix, cuts) == "rows":
            sums.append(Sum(done, matrix.output_bytes))
    return Pass(tuple(sums), done)


def backward_pass(matrices: Sequence[Matrix], cuts: Mapping[str, Cut]) -> Pass:
    """The gradients of what columns take in are added up: once for those that take in the same."""
    sums: list[Sum] = []
    done = 0.0
    backwards = reversed(list(_shares(matrices, cuts)))
    for (role, _), layers in groupby(backwards, key=lambda each: (_role(each[0], cuts), each[0].source)):
        alike = list(layers)
        done += sum(share for _, share in alike)
        first = alike[-1][0]
        if role == "columns" and first.input_learns:
            sums.append(Sum(done, first.input_bytes))
    return Pass(tuple(sums), done)


def cut_calls(layers: int, part: float, then: Sum | None) -> int:
    """Of a part of a pass through so many cut layers, which a sum may follow."""
    return round(CUT_CALLS * layers * part) + (SUM_CALLS if then else 0)


def part_bytes(footprint: Footprint, cuts: Mapping[str, Cut], part: int) -> list[int]:
    """Of every parameter, in the footprint's order, on one of the devices; the first alone adds a bias to sums."""
    sizes = []
    for name, size in zip(footprint.parameter_names, footprint.parameter_bytes, strict=True):
        layer, _, kind = name.rpartition(".")
        cut = cuts.get(layer)
        if cut and (kind == "weight" or cut.role == "columns"):
            size = size * cut.sizes[part] // sum(cut.sizes)
        elif cut and part:
            size = 0
        sizes.append(size)
    return sizes


def _role(matrix: Matrix, cuts: Mapping[str, Cut]) -> str:
    return cuts[matrix.name].role if matrix.name in cuts else ""


def _shares(matrices: Sequence[Matrix], cuts: Mapping[str, Cut]) -> Iterator[tuple[Matrix, float]]:
    """Each layer's part of the seconds that a device alone would take, as far as the fullest device computes it."""
    total = sum(matrix.flops for matrix in matrices)
    for matrix in matrices:
        sizes = cuts[matrix.name].sizes if matrix.name in cuts else (1,)
        yield matrix, matrix.flops / total * (max(sizes) + NARROW) / (sum(sizes) + NARROW)
