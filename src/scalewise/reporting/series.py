"""Group measurements into comparable series, each with its single-device baseline."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalewise.core.statistics import Interval
from scalewise.formats.store import Environment, Measurement
from scalewise.reporting.finding import machine_text, place_text, when_text
from scalewise.strategies.registry import REFERENCE, is_reference, strategy_named, written


@dataclass(frozen=True)
class Cell:
    """One timed combination of devices and global batch."""

    devices: int
    batch: int
    samples: int
    """Samples per epoch."""
    epoch_seconds: float
    uncertainty: float = 0.0
    """Half-width of the 95% interval of the step time, relative to the step time: infinite if the cell was timed
    once, 0 if it is not recorded."""
    bytes_per_step: int | None = None
    """Bytes sent plus received by the busiest device; None if unknown."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per step of each phase."""
    timed_steps: int | None = None
    """Number of timed steps; None if it is not recorded."""
    strategy: str = ""
    """Strategy with its options; on one device often `single`. Empty if it is not recorded."""

    @property
    def steps(self) -> int:
        """Steps per epoch, including a short last batch."""
        return -(-self.samples // self.batch)

    @property
    def batch_per_device(self) -> int:
        """Largest batch of any device, which determines the step time."""
        return -(-self.batch // self.devices)

    @property
    def bytes_per_epoch(self) -> int | None:
        return None if self.bytes_per_step is None else self.bytes_per_step * self.steps

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.epoch_seconds

    def surely_slower_than(self, other: Cell, margin: float) -> bool:
        """Return whether this cell is slower by more than the relative margin and by more than the uncertainty."""
        uncertainty = math.hypot(self.uncertainty * self.epoch_seconds, other.uncertainty * other.epoch_seconds)
        return self.epoch_seconds - other.epoch_seconds > max(margin * other.epoch_seconds, uncertainty)

    def ratio_uncertainty(self, other: Cell) -> float:
        """Return the relative uncertainty of the ratio of the two times, taking their errors as independent."""
        return math.hypot(self.uncertainty, other.uncertainty)


@dataclass(frozen=True)
class Series:
    """Comparable cells that differ only in devices and batch; the cells on one device are the baseline."""

    workload: str
    strategy: str
    """Strategy with its options, and whatever else distinguishes this series from others of the same strategy."""
    cells: tuple[Cell, ...]
    machine: str = ""
    when: str = ""
    """Day or range of days of the measurements."""
    kin: str = ""
    """Properties that comparable series share and other series of the workload do not, such as the machine or the
    precision; empty if all series of the workload are comparable."""

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.strategy}"

    @property
    def device_counts(self) -> list[int]:
        return sorted({cell.devices for cell in self.cells})

    @property
    def batches(self) -> list[int]:
        return sorted({cell.batch for cell in self.cells})

    def line(self, devices: int) -> list[Cell]:
        """Return the cells of one device count, ordered by batch."""
        return sorted((cell for cell in self.cells if cell.devices == devices), key=lambda cell: cell.batch)

    def at(self, devices: int, batch: int) -> Cell | None:
        return next((cell for cell in self.cells if (cell.devices, cell.batch) == (devices, batch)), None)

    @property
    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Pairs of the cell on one device and a cell on several devices at the same global batch."""
        several = sorted((cell for cell in self.cells if cell.devices > 1), key=lambda cell: (cell.devices, cell.batch))
        return [(one, cell) for cell in several if (one := self.at(1, cell.batch))]


def of_environment(measurement: Measurement) -> Hashable:
    return measurement.environment


def baseline_of(
    measurement: Measurement,
    others: Iterable[Measurement],
    reference: str,
    place: Callable[[Measurement], Hashable] = of_environment,
) -> Measurement | None:
    """Find the single-device baseline at the same global batch; None if there is none.

    This is a measurement of the reference strategy, else of the strategy itself, preferably with the same options.
    Measurements are comparable if `place` (machine and data) returns the same value for both.
    """
    key = (*_comparable(measurement), place(measurement))
    candidates = [
        other
        for other in others
        if other.devices == 1
        and other.hosts == 1
        and other.status == "ok"
        and (*_comparable(other), place(other)) == key
        and (other.strategy == reference or _is_same_strategy(other, measurement))
    ]
    return min(candidates, key=lambda other: _distance(other, measurement, reference), default=None)


def _is_same_strategy(other: Measurement, measurement: Measurement) -> bool:
    """Return whether both have the same strategy and `other` has no link or the same one (for server strategies)."""
    return other.strategy == measurement.strategy and other.link in (None, measurement.link)


def _distance(other: Measurement, measurement: Measurement, reference: str) -> tuple[bool, bool, bool]:
    return other.strategy != reference, other.options != measurement.options, other.link != measurement.link


def _comparable(measurement: Measurement) -> tuple[object, ...]:
    return (
        measurement.workload,
        measurement.batch,
        measurement.device_kind,
        measurement.precision,
        measurement.optimizer,
        measurement.protocol,
        measurement.execution,
    )


Key = tuple[Any, ...]


def series_of(measurements: Sequence[Measurement], environments: Mapping[str, Environment]) -> list[Series]:
    """Group measurements into series, leaving out those without a time or with an unknown number of samples.

    The baseline is `single`; at batches where it was not measured, the strategy itself on one device.
    """

    def place(measurement: Measurement) -> str:
        return place_key(measurement, environments)

    timed = [measurement for measurement in measurements if cell_of(measurement, environments) is not None]
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for measurement in timed:
        key = _baseline_key(measurement, environments)
        groups[key, series_strategy(measurement), measurement.hosts, measurement.link].append(measurement)
    with_several_devices = {key for key, strategy, *_ in groups if not is_reference(strategy)}
    batches = sorted({measurement.batch for measurement in timed})
    grouped: list[tuple[list[Measurement], list[Measurement]]] = []
    for (key, strategy, *_), members in groups.items():
        if is_reference(strategy) and key in with_several_devices:
            continue
        baselines = [baseline_of(replace(members[0], batch=batch), timed, REFERENCE.name, place) for batch in batches]
        several = [member for member in members if member.devices > 1]
        grouped.append(([*members], [*filter(None, baselines), *several]))
    firsts = [members[0] for members, _ in grouped]
    return [
        Series(
            first.workload,
            ", ".join([series_strategy(first), *_differences(first, _of_one_strategy(first, firsts), environments)]),
            tuple(cell for measurement in compared if (cell := cell_of(measurement, environments))),
            machine=place_text(environments[first.environment], first.device_kind),
            when=when_text([member.started for member in members]),
            kin=", ".join(_differences(first, _of_one_workload(first, firsts), environments)),
        )
        for first, (members, compared) in zip(firsts, grouped, strict=True)
    ]


def cell_of(measurement: Measurement, environments: Mapping[str, Environment]) -> Cell | None:
    """Convert a measurement to a cell; None without a time or without a known number of samples per epoch."""
    environment = environments.get(measurement.environment)
    if measurement.status != "ok" or environment is None or environment.samples_per_epoch is None:
        return None
    step, samples = measurement.step_seconds, environment.samples_per_epoch
    epoch = measurement.epoch_seconds
    if epoch is None:
        assert step is not None
        epoch = step.median * -(-samples // measurement.batch)
    step_bytes = measurement.bytes_per_step
    steps_per_batch = measurement.devices if _is_asynchronous(measurement) else 1
    return Cell(
        measurement.devices,
        measurement.batch,
        samples,
        epoch,
        uncertainty=_uncertainty(step) if step else 0.0,
        bytes_per_step=step_bytes.busiest * steps_per_batch if step_bytes else None,
        phases=measurement.phases,
        timed_steps=step.n if step else None,
        strategy=series_strategy(measurement),
    )


def _uncertainty(step: Interval) -> float:
    """Return the relative distance from the median to the farther end of the interval, infinite for a single step."""
    return max(step.high - step.median, step.median - step.low) / step.median if step.n > 1 else math.inf


def _is_asynchronous(measurement: Measurement) -> bool:
    """Return whether a measured step is one update by one worker, so that a batch takes one step per worker."""
    strategy = strategy_named(measurement.strategy, measurement.options)
    return strategy is not None and strategy.asynchronous


def series_strategy(measurement: Measurement) -> str:
    return written(measurement.strategy, measurement.options)


def _baseline_key(measurement: Measurement, environments: Mapping[str, Environment]) -> Key:
    """Return everything that a cell and its single-device baseline must have in common."""
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
    """Return a key of the machine, its software, the data and the conditions."""
    return json.dumps(environments[measurement.environment].place, sort_keys=True)


def _of_one_strategy(first: Measurement, firsts: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements whose series have the same workload and strategy."""
    name = first.workload, series_strategy(first)
    return [other for other in firsts if (other.workload, series_strategy(other)) == name]


def _of_one_workload(first: Measurement, firsts: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of the same workload, treated as on one host: several hosts are compared with one."""
    return [replace(other, hosts=1, link=None) for other in firsts if other.workload == first.workload]


def _differences(
    first: Measurement, others: Sequence[Measurement], environments: Mapping[str, Environment]
) -> list[str]:
    """Return texts of the fields that distinguish a measurement from others, with the machine if needed."""
    differing = [name for name in _FIELD_TEXTS if len({getattr(other, name) for other in others}) > 1]
    extra = [_FIELD_TEXTS[name].format(getattr(first, name)) for name in differing if getattr(first, name) is not None]
    places = {place_key(other, environments): other for other in others}
    if len(places) > 1:
        machines = {machine_text(environments[other.environment], other.device_kind) for other in places.values()}
        same = places[place_key(first, environments)]
        machine = machine_text(environments[first.environment], first.device_kind)
        extra.append(machine if len(machines) == len(places) else f"environment {same.environment}")
    return extra


_FIELD_TEXTS = {
    "device_kind": "{}",
    "hosts": "hosts {}",
    "link": "{}",
    "precision": "{}",
    "optimizer": "{}",
    "protocol": "{} protocol",
    "execution": "{}",
}
