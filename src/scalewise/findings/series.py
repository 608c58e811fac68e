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
    firsts = [members[0] for members, _ in found]
    return [
        Series(
            first.workload,
            ", ".join([strategy_text(first), *_told_apart(first, _of_one_strategy(first, firsts), environments)]),
            tuple(cell for each in compared if (cell := cell_of(each, environments))),
            machine=place_text(environments[first.environment], first.device_kind),
            when=when_text([each.started for each in members]),
            kin=", ".join(_told_apart(first, _of_one_workload(first, firsts), environments)),
        )
        for first, (members, compared) in zip(firsts, found, strict=True)
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
        strategy=strategy_text(measurement),
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
    """The machine, its software, the data and the conditions."""
    return json.dumps(environments[measurement.environment].place, sort_keys=True)


def _of_one_strategy(first: Measurement, firsts: Sequence[Measurement]) -> list[Measurement]:
    """Those whose series would bear the same name."""
    name = first.workload, strategy_text(first)
    return [other for other in firsts if (other.workload, strategy_text(other)) == name]


def _of_one_workload(first: Measurement, firsts: Sequence[Measurement]) -> list[Measurement]:
    """As on one host: hosts are compared with one."""
    return [replace(other, hosts=1, link=None) for other in firsts if other.workload == first.workload]


def _told_apart(
    first: Measurement, others: Sequence[Measurement], environments: Mapping[str, Environment]
) -> list[str]:
    """Whatever tells it from others beside the strategy: the machine's name, if that does."""
    differing = [name for name in _TELLING if len({getattr(other, name) for other in others}) > 1]
    extra = [_TELLING[name].format(getattr(first, name)) for name in differing if getattr(first, name) is not None]
    places = {place_key(other, environments): other for other in others}
    if len(places) > 1:
        machines = {machine_text(environments[other.environment], other.device_kind) for other in places.values()}
        same = places[place_key(first, environments)]
        machine = machine_text(environments[first.environment], first.device_kind)
        extra.append(machine if len(machines) == len(places) else f"environment {same.environment}")
    return extra


_TELLING = {
    "device_kind": "{}",
    "hosts": "hosts {}",
    "link": "{}",
    "precision": "{}",
    "optimizer": "{}",
    "protocol": "{} protocol",
    "execution": "{}",
}
