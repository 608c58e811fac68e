"""How many samples to make, and which of the found ones to use, when the user limits them."""

from __future__ import annotations

from scalewise.data.data import DataRequest
from scalewise.errors import UserError


def samples_to_make(request: DataRequest, default: int) -> int:
    """For generated data: as many as asked for."""
    if request.samples is None:
        return default
    if request.samples < 1:
        raise UserError(f"--samples must be at least 1, not {request.samples}")
    return request.samples


def samples_to_use(request: DataRequest, available: int, place: str) -> list[int]:
    """For found data: the indices of as many as asked for, spread evenly, because sorted files come class by class."""
    count = samples_to_make(request, available)
    if count > available:
        raise UserError(f"--samples {count} is more than the {available} samples in {place}")
    return [index * available // count for index in range(count)]
