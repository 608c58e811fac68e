"""A strategy as it is written on the command line, from what a measurement says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalewise.strategies.registry import STRATEGIES


def written(name: str, options: Mapping[str, Any]) -> str:
    """'mirrored', or with the options that differ from their defaults: 'parameter-server:servers=2'."""
    kind = STRATEGIES.get(name)
    usual = dataclasses.asdict(kind()) if kind else {}  # type: ignore[call-overload]
    given = [f"{key}={value}" for key, value in options.items() if usual.get(key) != value]
    return f"{name}:{','.join(given)}" if given else name
