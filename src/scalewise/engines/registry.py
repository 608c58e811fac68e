"""Which engine runs which strategy."""

from __future__ import annotations

from collections.abc import Callable

from scalewise.engines import single
from scalewise.engines.engine import Engine, Job
from scalewise.strategies.strategy import Strategy

ENGINES: dict[str, Callable[[Strategy, Job], Engine]] = {
    "single": lambda _, job: single.build(job),
}
