"""What a workload weighs, as a profile that nothing was timed for."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import Any

from scalewise.data.data import DataRequest
from scalewise.plan import Footprint
from scalewise.results.profile import LayerCost, ProfileDocument
from scalewise.verbs.describe import Description, describe
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload


@cache
def outline_of(workload: str | Workload, input_shape: str | None = None, classes: int | None = None) -> ProfileDocument:
    found = resolve(workload, input_shape, classes) if isinstance(workload, str) else workload
    described = describe(found)
    return ProfileDocument(
        workload=found.name,
        device="",
        execution="eager",
        samples_per_epoch=1,
        parameter_bytes=described.parameter_bytes,
        input_bytes=described.input_bytes,
        footprint=as_data(footprint_of(found, found.data(DataRequest(samples=2)))),
        layers=layer_costs(described),
        steps=(),
    )


def as_data(footprint: Footprint) -> dict[str, Any]:
    """As a profile holds it, and as it is read again."""
    return json.loads(json.dumps(asdict(footprint)))  # type: ignore[no-any-return]


def layer_costs(described: Description) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(
            name=layer.name,
            parameter_bytes=layer.parameter_bytes,
            activation_bytes=layer.activation_bytes,
            flops=layer.flops,
        )
        for layer in described.layers
    )
