"""How many micro-batches a batch is cut into: decided here, for plans and engines alike."""

from __future__ import annotations

from scalewise.errors import UserError
from scalewise.strategies.schedules import Kind

MOST_PER_DEVICE = 4
"""With so many micro-batches per device a fifth of the step is idle; more of them are too small to be quick."""


def microbatches_for(batch: int, devices: int, kind: Kind, given: int | None) -> int:
    """As given, else the most, up to four per device, that pad the batch least."""
    if given is not None:
        _check(given, batch, devices, kind)
        return given
    fewest = devices if kind == "1f1b" else 1
    choices = [
        count
        for count in range(max(fewest, min(devices, batch)), max(fewest, min(MOST_PER_DEVICE * devices, batch)) + 1)
        if kind != "interleaved" or not _rounds_left_over(count, devices)
    ]
    return min(choices, key=lambda count: (count * microbatch_size(batch, count) - batch, -count))


def microbatch_size(batch: int, microbatches: int) -> int:
    """Samples of each; the last ones are padded with samples of no weight."""
    return -(-batch // microbatches)


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
