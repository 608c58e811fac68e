"""Which parameters are gathered and given up together when a model is sharded: those of one layer."""

from __future__ import annotations

from collections.abc import Sequence


def units_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Modules, and the positions of the parameters that each holds, in the order of the first.

    A unit is an element of a sequence of layers: ('1.query.weight', '1.key.weight', 'head.bias') -> {'1': [0, 1], '':
    [2]}; what is in none belongs to the model itself, ''. A model without sequences is cut into its children.
    """
    found = [_element(name) for name in names]
    if not any(found):
        found = [name.partition(".")[0] if "." in name else "" for name in names]
    units: dict[str, list[int]] = {}
    for position, unit in enumerate(found):
        units.setdefault(unit, []).append(position)
    return units


def _element(name: str) -> str:
    """The outermost element of a sequence: 'decoder.layers.3.mlp.0.weight' -> 'decoder.layers.3'."""
    path = name.split(".")[:-1]
    for depth, step in enumerate(path, 1):
        if step.isdigit():
            return ".".join(path[:depth])
    return ""
