"""The one-device cell that a cell on several devices is compared with: like with like."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from scalewise.results.measurement import Measurement


def of_environment(measurement: Measurement) -> Hashable:
    return measurement.environment


def baseline_of(
    measurement: Measurement, others: Iterable[Measurement], place: Callable[[Measurement], Hashable] = of_environment
) -> Measurement | None:
    """`single` at the same global batch; if that was not measured, the strategy itself, with its own options at best.

    `place` tells machines and data apart: cells of one place may be compared.
    """
    wanted = (*_alike(measurement), place(measurement))
    alone = [
        other
        for other in others
        if other.devices == 1
        and other.hosts == 1
        and other.status == "ok"
        and (*_alike(other), place(other)) == wanted
        and (other.strategy == "single" or _is_its_own(other, measurement))
    ]
    return min(alone, key=lambda other: _distance(other, measurement), default=None)


def _is_its_own(other: Measurement, measurement: Measurement) -> bool:
    """The same strategy, over the same link if a server's worker has one, or over none."""
    return other.strategy == measurement.strategy and other.link in (None, measurement.link)


def _distance(other: Measurement, measurement: Measurement) -> tuple[bool, bool, bool]:
    return other.strategy != "single", other.options != measurement.options, other.link != measurement.link


def _alike(each: Measurement) -> tuple[object, ...]:
    return (
        each.workload, each.batch, each.device_kind, each.precision, each.optimizer, each.protocol, each.execution,
    )  # fmt: skip
