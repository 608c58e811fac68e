"""Where layers are cut so that every device has a part of each: decided here, for plans and engines alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from scalewise.errors import UserError
from scalewise.plan import Matrix
from scalewise.spec import unknown
from scalewise.strategies.shares import share_sizes

MOST_NAMES = 16


@dataclass(frozen=True)
class Cut:
    """Columns: a device computes some of what the layer puts out. Rows: from some of what it takes in, to be added."""

    role: Literal["columns", "rows"]
    sizes: tuple[int, ...]
    """Columns or rows of every device."""


def declared_cuts(matrices: Sequence[Matrix], parts: int) -> dict[str, Cut]:
    """As the model says itself; layers with fewer columns than there are devices stay whole on each."""
    named = [matrix for matrix in matrices if matrix.role]
    if not named:
        raise UserError(
            "tensor finds no layers to cut: none is followed, through element-wise functions only, by another; name "
            f"them as in tensor:columns=LAYER+LAYER,rows=LAYER; there are: {', '.join(_names(matrices)) or 'none'}"
        )
    cuts: dict[str, Cut] = {}
    widest = 0
    for group in dict.fromkeys(matrix.group for matrix in named):
        members = [matrix for matrix in named if matrix.group == group]
        units = min(_width(each, each.role) // each.unit for each in members)
        widest = max(widest, units)
        if units >= parts:
            cuts |= {each.name: _cut(each, each.role, each.unit, parts) for each in members if each.role}
    if not cuts:
        raise UserError(
            f"tensor cannot cut these layers into {parts} parts: the widest has {widest} columns, or heads, to share; "
            f"use at most {widest} devices"
        )
    return cuts


def named_cuts(matrices: Sequence[Matrix], parts: int, columns: str, rows: str, head_width: int) -> dict[str, Cut]:
    """Layers named by the user, 'encoder.*.fc1+decoder.*.fc1'."""
    if not columns or not rows:
        given, missing = ("columns", "rows") if columns else ("rows", "columns")
        raise UserError(
            f"tensor: {given}={columns or rows} needs {missing}=... as well: what cut columns put out, cut rows take in"
        )
    cuts: dict[str, Cut] = {}
    chosen: tuple[tuple[Literal["columns", "rows"], str], ...] = (("columns", columns), ("rows", rows))
    for role, patterns in chosen:
        for pattern in patterns.split("+"):
            found = [matrix for matrix in matrices if fnmatchcase(matrix.name, pattern)]
            if not found:
                raise unknown("linear or convolutional layer", pattern, _names(matrices))
            for matrix in found:
                if matrix.name in cuts and cuts[matrix.name].role != role:
                    raise UserError(f"tensor: '{matrix.name}' is named in columns and in rows; name it in one")
                cuts[matrix.name] = _cut(matrix, role, head_width, parts)
    return cuts


def _cut(matrix: Matrix, role: Literal["columns", "rows"], unit: int, parts: int) -> Cut:
    width = _width(matrix, role)
    if width % unit:
        raise UserError(f"tensor: '{matrix.name}' has {width} {role}, not a multiple of head_width {unit}")
    if width // unit < parts:
        raise UserError(
            f"tensor: '{matrix.name}' has {width // unit} {role if unit == 1 else 'heads'} to share among {parts} "
            f"devices; use at most {width // unit} devices, or leave it out"
        )
    return Cut(role, tuple(size * unit for size in share_sizes(width // unit, parts)))


def _width(matrix: Matrix, role: str) -> int:
    return matrix.columns if role == "columns" else matrix.rows


def _names(matrices: Sequence[Matrix]) -> list[str]:
    """The first of many, and the last."""
    names = list(dict.fromkeys(matrix.name for matrix in matrices))
    return names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 2], "...", names[-1]]
