"""What torch's PowerSGD hook sends in place of a bucket: two thin factors for every matrix worth it."""

from __future__ import annotations

import math
from collections.abc import Iterable

RANK = 1
LEAST_COMPRESSION = 2
"""torch's own defaults."""


def powersgd_bytes(shapes: Iterable[tuple[int, ...]], element_bytes: int) -> list[int]:
    """Bytes of the three all-reduces of a bucket: what stays whole, the left factors, the right factors."""
    whole = left = right = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = math.prod(shape[1:])
        if rows * columns > (rows + columns) * RANK * LEAST_COMPRESSION:
            left += rows * RANK
            right += columns * RANK
        else:
            whole += rows * columns
    return [count * element_bytes for count in (whole, left, right)]
