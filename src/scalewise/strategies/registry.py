"""Registry of the parallelism strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalewise.core.errors import UserError
from scalewise.core.specs import parse_spec, unknown
from scalewise.strategies.base import Strategy, options_of, with_options
from scalewise.strategies.central_storage import CentralStorage
from scalewise.strategies.data_parallel import DataParallel
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.layers import Layers
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.ring import Ring
from scalewise.strategies.sharded import Sharded
from scalewise.strategies.single import Single
from scalewise.strategies.tensor import Tensor

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "data-parallel": DataParallel,
    "mirrored": Mirrored,
    "ring": Ring,
    "parameter-server": ParameterServer,
    "parameter-server-async": ParameterServerAsync,
    "central-storage": CentralStorage,
    "layers": Layers,
    "pipeline": Pipeline,
    "tensor": Tensor,
    "hybrid": Hybrid,
    "sharded": Sharded,
}

REFERENCE: Strategy = Single()
"""Baseline of all other strategies."""
STANDARD: Strategy = Mirrored()
"""Usual choice of PyTorch users."""
MEASURED_BY_DEFAULT = (REFERENCE.name, STANDARD.name)
"""Strategies that `measure` times if none is given."""


def is_reference(name: str) -> bool:
    return name in STRATEGIES and STRATEGIES[name].reference


def strategy_named(name: str, options: Mapping[str, Any]) -> Strategy | None:
    """Strategy of a stored measurement; None if this version has no such strategy or option."""
    if name not in STRATEGIES:
        return None
    try:
        return STRATEGIES[name](**options)
    except (TypeError, UserError):
        return None


def strategy_of(text: str) -> Strategy:
    """Parse a strategy given on the command line: 'mirrored:bucket_MB=10' -> Mirrored(bucket_MB=10.0)."""
    spec = parse_spec(text)
    if spec.name not in STRATEGIES:
        raise unknown("strategy", spec.name, STRATEGIES)
    return with_options(STRATEGIES[spec.name], spec.name, spec.options)


def written(name: str, options: Mapping[str, Any]) -> str:
    """Format a strategy's name and the options that differ from their defaults: 'parameter-server:servers=2'."""
    kind = STRATEGIES.get(name)
    defaults = dataclasses.asdict(kind()) if kind else {}  # type: ignore[call-overload]
    given = [f"{key}={value}" for key, value in options.items() if defaults.get(key) != value]
    return f"{name}:{','.join(given)}" if given else name


def strategy_text(strategy: Strategy) -> str:
    """Format a strategy as it is written on the command line: 'parameter-server:servers=2'."""
    return written(strategy.name, options_of(strategy))
