"""How many micro-batches a batch is cut into: decided here, for plans and engines alike."""

from __future__ import annotations

from typing import NamedTuple

from scalewise.errors import UserError
from scalewise.strategies.schedules import Kind

MOST_PER_DEVICE = 4
"""With so many micro-batches per device a fifth of the step is idle; more of them are too small to be quick."""


class Microbatches(NamedTuple):
    """Of a batch; the last ones are padded with samples of no weight."""

    number: int
    size: int
    """Samples of each."""


def microbatches_for(
    batch: int, devices: int, kind: Kind, given: int | None, *, norms_batches: bool = False
) -> Microbatches:
    """As given, else the most, up to four per device, that pad the batch least; of two samples at least for models that
    normalise over them."""
    if given is not None:
        _check(given, batch, devices, kind)
        return Microbatches(given, -(-batch // given))
    smallest = min(batch, 2) if norms_batches else 1
    fewest, most = devices if kind == "1f1b" else 1, -(-batch // smallest)
    choices = [
        Microbatches(count, max(smallest, -(-batch // count)))
        for count in range(max(fewest, min(devices, most)), max(fewest, min(MOST_PER_DEVICE * devices, most)) + 1)
        if kind != "interleaved" or not _rounds_left_over(count, devices)
    ]
    return min(choices, key=lambda each: (each.number * each.size - batch, -each.number))


def _check(given: int, batch: int, devices: int, kind: Kind) -> None:
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


def _rounds_left_over(count: int, devices: int) -> int:
    return count % max(1, count // devices)
