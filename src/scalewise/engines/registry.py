"""Which engine runs which strategy."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scalewise.engines import central_storage, data_parallel, layers, mirrored, parameter_server, pipeline, ring, single
from scalewise.engines.engine import Engine, Job


def _when_asked_for(module: str) -> Callable[[Any, Job], Engine]:
    """DTensor and FSDP take as long to load as all the rest: only those who run them wait for that."""

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
    "pipeline": pipeline.build,
    "tensor": _when_asked_for("tensor"),
    "hybrid": _when_asked_for("hybrid"),
    "sharded": _when_asked_for("sharded"),
}
"""Each is given its own strategy's dataclass."""
