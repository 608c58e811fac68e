"""Into how many micro-batches a batch may be cut."""

from __future__ import annotations

from typing import NamedTuple

from scalewise.errors import UserError
from scalewise.strategies.schedules import Kind

MOST_PER_DEVICE = 8
"""With so many micro-batches per device an eighth of the step is idle at most."""
TIMES_DEVICES = (1, 1.5, 2, 3, 4, 6, MOST_PER_DEVICE)
"""About so many are tried."""
WITHOUT_COSTS = 4
"""Per device, at most, of a model of which nothing is known."""


class Microbatches(NamedTuple):
    """Of a batch; the last ones are padded with samples of no weight."""

    number: int
    size: int
    """Samples of each."""


def given_microbatches(given: int, batch: int, devices: int, kind: Kind) -> Microbatches:
    """As asked for, or a refusal."""
    if given > batch:
        raise UserError(f"microbatches={given} is more than the batch of {batch}; use at most {batch}")
    if kind == "1f1b" and given < devices:
        raise UserError(
            f"microbatches={given} is too few: schedule=1f1b needs one for each of {devices} devices; use "
            f"microbatches={devices} or more, or schedule=gpipe"
        )
    if kind == "interleaved" and (left := _rounds_left_over(given, devices)):
        raise UserError(
            f"microbatches={given} leaves {left} over: schedule=interleaved takes them in {given // devices} rounds "
            f"of equal size; use a multiple of {devices}"
        )
    return Microbatches(given, -(-batch // given))


def choices_for(batch: int, devices: int, kind: Kind, *, norms_batches: bool = False) -> list[Microbatches]:
    """From one to eight per device, a few between, each padding the batch as little as can be; of two samples at least
    for models that normalise over them."""
    smallest = least_samples(batch, norms_batches)
    fewest, most = devices if kind == "1f1b" else 1, -(-batch // smallest)
    first, last = max(fewest, min(devices, most)), max(fewest, min(MOST_PER_DEVICE * devices, most))
    possible = [
        Microbatches(count, max(smallest, -(-batch // count)))
        for count in range(first, last + 1)
        if kind != "interleaved" or not _rounds_left_over(count, devices)
    ]
    found: list[Microbatches] = []
    for times in TIMES_DEVICES:
        most_so_far = found[-1].number if found else 0
        if between := [each for each in possible if most_so_far < each.number <= times * devices]:
            found.append(_least_padded(between, batch))
    return found or [_least_padded(possible, batch)]


def least_samples(batch: int, norms_batches: bool) -> int:
    """Of a micro-batch that is not asked for."""
    return min(batch, 2) if norms_batches else 1


def without_costs(batch: int, devices: int, kind: Kind, *, norms_batches: bool = False) -> Microbatches:
    """The most, up to four per device, that pad the batch least."""
    choices = choices_for(batch, devices, kind, norms_batches=norms_batches)
    few = [each for each in choices if each.number <= WITHOUT_COSTS * devices]
    return _least_padded(few or choices, batch)


def _least_padded(choices: list[Microbatches], batch: int) -> Microbatches:
    return min(choices, key=lambda each: (each.number * each.size - batch, -each.number))


def _rounds_left_over(count: int, devices: int) -> int:
    return count % max(1, count // devices)
