"""The strategies there are."""

from __future__ import annotations

from scalewise.spec import parse_spec, unknown
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
from scalewise.strategies.strategy import Strategy, with_options
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


def strategy_of(text: str) -> Strategy:
    """'mirrored:bucket_MB=10' -> Mirrored(bucket_MB=10.0)."""
    spec = parse_spec(text)
    if spec.name not in STRATEGIES:
        raise unknown("strategy", spec.name, STRATEGIES)
    return with_options(STRATEGIES[spec.name], spec.name, spec.options)
