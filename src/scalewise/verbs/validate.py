"""`scalewise validate`: predictions against figures that were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

from scalewise.errors import UserError
from scalewise.spec import unknown
from scalewise.validation.report import Validation
from scalewise.validation.table import Table

TABLES = {
    "stevens": "scalewise.validation.stevens:stevens_tables",
    "tensorflow": "scalewise.validation.tensorflow:tensorflow_tables",
    "t4": "scalewise.validation.t4:t4_tables",
    "small": "scalewise.validation.small:small_tables",
}
"""The published ones, and what predicts each."""


def validate(tables: Iterable[str] = TABLES, on_table: Callable[[str], None] | None = None) -> Validation:
    """Predict published figures from their one-device rows, and say how far off that is.

    >>> print(scalewise.validate(["stevens"]))
    """
    chosen = list(tables)
    if not chosen:
        raise UserError(f"no table named; valid: {', '.join(TABLES)}")
    for name in chosen:
        if name not in TABLES:
            raise unknown("table", name, TABLES)
    made: list[Table] = []
    for name in chosen:
        if on_table:
            on_table(name)
        module, _, function = TABLES[name].partition(":")
        made += getattr(import_module(module), function)()
    return Validation(made)
