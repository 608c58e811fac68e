"""Split layers by columns and rows, and plan the passes of the split model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Literal

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.strategies.plan import Footprint, SplittableLayer, share_sizes

MOST_NAMES = 16


@dataclass(frozen=True)
class LayerSplit:
    """Split of one layer over devices.

    columns: every device computes part of the output from the whole input. rows: every device computes a partial sum
    of the whole output from part of the input; the sums are all-reduced.
    """

    role: Literal["columns", "rows"]
    sizes: tuple[int, ...]
    """Number of columns or rows on each device."""


def declared_splits(matrices: Sequence[SplittableLayer], parts: int) -> dict[str, LayerSplit]:
    """Split the layers that have a declared role. Layers with fewer columns than devices are replicated instead."""
    named = [matrix for matrix in matrices if matrix.role]
    if not named:
        raise UserError(
            "tensor finds no layers to split: no nn.Sequential has two linear layers (or two convolutions) with only "
            "element-wise functions between them, and no module has a tensor_parallel attribute",
            "name layers with tensor:columns=LAYER+LAYER,rows=LAYER; this model has: "
            + (", ".join(_names(matrices)) or "none"),
        )
    layer_splits: dict[str, LayerSplit] = {}
    widest = 0
    for group in dict.fromkeys(matrix.group for matrix in named):
        members = [matrix for matrix in named if matrix.group == group]
        units = min(_width(matrix, matrix.role) // matrix.unit for matrix in members)
        widest = max(widest, units)
        if units >= parts:
            layer_splits |= {
                matrix.name: _split(matrix, matrix.role, matrix.unit, parts) for matrix in members if matrix.role
            }
    if not layer_splits:
        raise UserError(
            f"tensor cannot split the layers over {parts} devices: the widest has {widest} columns or attention heads",
            f"use at most {widest} devices",
        )
    return layer_splits


def named_cuts(
    matrices: Sequence[SplittableLayer], parts: int, columns: str, rows: str, head_width: int
) -> dict[str, LayerSplit]:
    """Split layers named by the user with patterns such as 'encoder.*.fc1+decoder.*.fc1'."""
    if not columns or not rows:
        given, missing = ("columns", "rows") if columns else ("rows", "columns")
        raise UserError(
            f"tensor: {given}={columns or rows} needs {missing}=... as well, "
            "because layers split by columns feed layers split by rows"
        )
    layer_splits: dict[str, LayerSplit] = {}
    patterns_by_role: tuple[tuple[Literal["columns", "rows"], str], ...] = (("columns", columns), ("rows", rows))
    for role, patterns in patterns_by_role:
        for pattern in patterns.split("+"):
            matches = [matrix for matrix in matrices if fnmatchcase(matrix.name, pattern)]
            if not matches:
                raise unknown("linear or convolutional layer", pattern, _names(matrices))
            for matrix in matches:
                if matrix.name in layer_splits and layer_splits[matrix.name].role != role:
                    raise UserError(
                        f"tensor: '{matrix.name}' is named in columns and in rows", "name it in only one of them"
                    )
                layer_splits[matrix.name] = _split(matrix, role, head_width, parts)
    return layer_splits


def _split(matrix: SplittableLayer, role: Literal["columns", "rows"], unit: int, parts: int) -> LayerSplit:
    width = _width(matrix, role)
    if width % unit:
        raise UserError(f"tensor: '{matrix.name}' has {width} {role}, which is not a multiple of head_width={unit}")
    if width // unit < parts:
        raise UserError(
            f"tensor: '{matrix.name}' has too few {role if unit == 1 else 'heads'} for {parts} devices: "
            f"{width // unit}",
            f"use at most {width // unit} devices, or do not name this layer",
        )
    return LayerSplit(role, tuple(size * unit for size in share_sizes(width // unit, parts)))


def _width(matrix: SplittableLayer, role: str) -> int:
    return matrix.columns if role == "columns" else matrix.rows


def _names(matrices: Sequence[SplittableLayer]) -> list[str]:
    """Names without duplicates; a long list is shortened to the first names and the last."""
    names = list(dict.fromkeys(matrix.name for matrix in matrices))
    return names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 2], "...", names[-1]]


NARROW = 12
"""Fixed cost of a layer, in columns or rows: a narrow layer does not fill vector lanes, and its other side stays whole.

Half of a convolution with 8, 16, 32 and 64 channels took 0.86, 0.70, 0.78 and 0.52 of its whole time (one core,
torch 2.13).
"""

CUT_CALLS, SUM_CALLS = 10, 80
"""Device calls of DTensor: per split layer in forward and in backward, and per all-reduce through the host."""


@dataclass(frozen=True)
class Sum:
    """An all-reduce between the devices of a split model."""

    at: float
    """Computed part of the phase when the all-reduce starts; 1 is the whole phase on a single device."""
    bytes: int
    """Bytes per sample."""


@dataclass(frozen=True)
class Pass:
    """Forward or backward on the device with the largest parts of layers."""

    sums: tuple[Sum, ...]
    share: float
    """Compute time relative to a single device."""


def forward_pass(matrices: Sequence[SplittableLayer], layer_splits: Mapping[str, LayerSplit]) -> Pass:
    """Forward pass: outputs of layers split by rows are all-reduced."""
    sums: list[Sum] = []
    done = 0.0
    for matrix, share in _shares(matrices, layer_splits):
        done += share
        if _role(matrix, layer_splits) == "rows":
            sums.append(Sum(done, matrix.output_bytes))
    return Pass(tuple(sums), done)


def backward_pass(matrices: Sequence[SplittableLayer], layer_splits: Mapping[str, LayerSplit]) -> Pass:
    """Backward pass: input gradients of layers split by columns are all-reduced, once per shared input tensor."""
    sums: list[Sum] = []
    done = 0.0
    backwards = reversed(list(_shares(matrices, layer_splits)))
    for (role, _), group in groupby(backwards, key=lambda item: (_role(item[0], layer_splits), item[0].source)):
        siblings = list(group)  # layers with the same input
        done += sum(share for _, share in siblings)
        first = siblings[-1][0]
        if role == "columns" and first.input_learns:
            sums.append(Sum(done, first.input_bytes))
    return Pass(tuple(sums), done)


def split_layer_calls(layers: int, part: float, then: Sum | None) -> int:
    """Device calls of a part of a pass through `layers` split layers, and of the all-reduce that may follow."""
    return round(CUT_CALLS * layers * part) + (SUM_CALLS if then else 0)


def part_bytes(footprint: Footprint, layer_splits: Mapping[str, LayerSplit], part: int) -> list[int]:
    """Bytes of every parameter on device `part`, in the footprint's order.

    The bias of a layer split by rows is on the first device only, because it must be added once.
    """
    sizes = []
    for name, size in zip(footprint.parameter_names, footprint.parameter_bytes, strict=True):
        layer, _, kind = name.rpartition(".")
        split = layer_splits.get(layer)
        if split and (kind == "weight" or split.role == "columns"):
            size = size * split.sizes[part] // sum(split.sizes)
        elif split and part:
            size = 0
        sizes.append(size)
    return sizes


def _role(matrix: SplittableLayer, layer_splits: Mapping[str, LayerSplit]) -> str:
    return layer_splits[matrix.name].role if matrix.name in layer_splits else ""


def _shares(
    matrices: Sequence[SplittableLayer], layer_splits: Mapping[str, LayerSplit]
) -> Iterator[tuple[SplittableLayer, float]]:
    """Layers with the compute time of the largest part, relative to the whole model on a single device."""
    total = sum(matrix.flops for matrix in matrices)
    for matrix in matrices:
        sizes = layer_splits[matrix.name].sizes if matrix.name in layer_splits else (1,)
        yield matrix, matrix.flops / total * (max(sizes) + NARROW) / (sum(sizes) + NARROW)
