"""Short visits to the cells of a sweep, for tests of how a sweep proceeds, not of how long a step takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scalewise.sweep import stopping_rule, sweep


@contextmanager
def shortened() -> Iterator[None]:
    """Visit every cell as often as usual, with few steps each: a sweep of tiny models takes a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping_rule, "BLOCK_SECONDS", 0.01)
        patch.setattr(stopping_rule, "LEAST_STEPS", 20)  # bytes are counted after five steps if a run has 20 or more
        patch.setattr(stopping_rule, "WARM_UP_SECONDS", 0.005)
        patch.setattr(sweep, "REFERENCE_SECONDS", 0.01)
        yield
