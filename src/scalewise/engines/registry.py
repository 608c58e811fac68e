"""Registry of the engines."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scalewise.engines import central_storage, data_parallel, layers, mirrored, parameter_server, ring, single
from scalewise.engines.base import Engine, Job


def _import_when_built(module: str) -> Callable[[Any, Job], Engine]:
    """Return a build function that imports its module when called: DTensor, FSDP and pipelining load for seconds."""

    def build(strategy: Any, job: Job) -> Engine:
        engine: Engine = import_module(f"scalewise.engines.{module}").build(strategy, job)
        return engine

    return build


ENGINES: dict[str, Callable[[Any, Job], Engine]] = {
    "single": single.build,
    "data-parallel": data_parallel.build,
    "mirrored": mirrored.build,
    "ring": ring.RingEngine,
    "parameter-server": parameter_server.build,
    "parameter-server-async": parameter_server.build,
    "central-storage": central_storage.build,
    "layers": layers.build,
    "pipeline": _import_when_built("pipeline"),
    "tensor": _import_when_built("tensor"),
    "hybrid": _import_when_built("hybrid"),
    "sharded": _import_when_built("sharded"),
}
"""Strategy name -> function that builds its engine from the strategy's dataclass and a job."""
