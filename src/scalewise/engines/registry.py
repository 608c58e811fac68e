"""Which engine runs which strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalewise.engines import (
    central_storage,
    data_parallel,
    hybrid,
    layers,
    mirrored,
    parameter_server,
    pipeline,
    ring,
    sharded,
    single,
    tensor,
)
from scalewise.engines.engine import Engine, Job

ENGINES: dict[str, Callable[[Any, Job], Engine]] = {
    "single": single.build,
    "data-parallel": data_parallel.build,
    "mirrored": mirrored.build,
    "ring": ring.build,
    "parameter-server": parameter_server.build,
    "parameter-server-async": parameter_server.build,
    "central-storage": central_storage.build,
    "layers": layers.build,
    "pipeline": pipeline.build,
    "tensor": tensor.build,
    "hybrid": hybrid.build,
    "sharded": sharded.build,
}
"""Each is given its own strategy's dataclass."""
