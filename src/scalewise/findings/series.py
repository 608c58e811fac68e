"""Measurements sorted into series: what may be compared, each with its single-device baseline."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalewise.findings.cell import Cell, Series
from scalewise.findings.machine import machine_text, place_text, when_text
from scalewise.results.baseline import baseline_of
from scalewise.results.environment import Environment
from scalewise.results.measurement import Measurement
from scalewise.results.statistics import Interval
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.written import written

Key = tuple[Any, ...]


def series_of(measurements: Sequence[Measurement], environments: Mapping[str, Environment]) -> list[Series]:
    """Cells without a time, or of which nobody noted how many samples an epoch has, are left out.

    The baseline is `single`; at batches where that was not measured, the strategy itself on one device.
    """
    timed = [each for each in measurements if cell_of(each, environments) is not None]
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for each in timed:
        groups[_alike(each, environments), strategy_text(each), each.hosts, each.link].append(each)
    spread = {key[0] for key in groups if key[1] != "single"}
    batches = sorted({each.batch for each in timed})
    found: list[tuple[list[Measurement], list[Measurement]]] = []
    for (alike, strategy, *_), members in groups.items():
        if strategy == "single" and alike in spread:
            continue
        ones = [
            baseline_of(replace(members[0], batch=batch), timed, lambda each: place_key(each, environments))
            for batch in batches
        ]
        found.append(([*members], [*filter(None, ones), *(each for each in members if each.devices > 1)]))
    return [
        Series(
            members[0].workload,
            label,
            tuple(cell for each in compared if (cell := cell_of(each, environments))),
            machine=place_text(environments[members[0].environment], members[0].device_kind),
            when=when_text([each.started for each in members]),
        )
        for (members, compared), label in zip(
            found, _labels([members[0] for members, _ in found], environments), strict=True
        )
    ]


def cell_of(measurement: Measurement, environments: Mapping[str, Environment]) -> Cell | None:
    environment = environments.get(measurement.environment)
    if measurement.status != "ok" or environment is None or environment.samples_per_epoch is None:
        return None
    step, samples = measurement.step_seconds, environment.samples_per_epoch
    epoch = measurement.epoch_seconds
    if epoch is None:
        assert step is not None
        epoch = step.median * -(-samples // measurement.batch)
    moved = measurement.bytes_per_step
    steps_per_batch = measurement.devices if _is_asynchronous(measurement) else 1
    return Cell(
        measurement.devices,
        measurement.batch,
        samples,
        epoch,
        uncertainty=_uncertainty(step) if step else 0.0,
        bytes_per_step=moved.busiest * steps_per_batch if moved else None,
        phases=measurement.phases,
        timed_steps=step.n if step else None,
    )


def _uncertainty(step: Interval) -> float:
    """To the end of the interval that is further away. Of a step that was timed once nothing is known."""
    return max(step.high - step.median, step.median - step.low) / step.median if step.n > 1 else math.inf


def _is_asynchronous(measurement: Measurement) -> bool:
    """Its step is one update by one worker, where a cell's is a batch: an update by each."""
    return measurement.strategy == ParameterServerAsync.name and measurement.options.get("max_staleness") != 0


def strategy_text(measurement: Measurement) -> str:
    return written(measurement.strategy, measurement.options)


def _alike(measurement: Measurement, environments: Mapping[str, Environment]) -> Key:
    """All that a cell and its single-device baseline must share."""
    return (
        measurement.workload,
        measurement.device_kind,
        measurement.precision,
        measurement.optimizer,
        measurement.protocol,
        measurement.execution,
        place_key(measurement, environments),
    )


def place_key(measurement: Measurement, environments: Mapping[str, Environment]) -> str:
    """The machine, the versions and the data."""
    environment = environments[measurement.environment].model_dump(mode="json")
    environment["hardware"].pop("memory_bytes", None)  # differs by a few pages from one start of a machine to the next
    return json.dumps(environment, sort_keys=True)


def _labels(firsts: list[Measurement], environments: Mapping[str, Environment]) -> list[str]:
    """Strategies, with whatever else tells apart series that would bear the same name: the machine's, if that does."""
    same: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for each in firsts:
        same[each.workload, strategy_text(each)].append(each)
    labels = []
    for each in firsts:
        others = same[each.workload, strategy_text(each)]
        differing = [name for name in _TELLING if len({getattr(other, name) for other in others}) > 1]
        extra = [_TELLING[name].format(getattr(each, name)) for name in differing if getattr(each, name) is not None]
        machines = [machine_text(environments[other.environment], other.device_kind) for other in others]
        if "environment" in differing and len(set(machines)) == len({other.environment for other in others}):
            extra[-1] = machine_text(environments[each.environment], each.device_kind)
        labels.append(", ".join([strategy_text(each), *extra]))
    return labels


_TELLING = {
    "device_kind": "{}",
    "hosts": "hosts {}",
    "link": "{}",
    "precision": "{}",
    "optimizer": "{}",
    "protocol": "{} protocol",
    "execution": "{}",
    "environment": "environment {}",
}
