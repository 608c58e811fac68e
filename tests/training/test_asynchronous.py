"""Staleness and throughput of asynchronous runs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from scalewise.parameter_server.server import Served
from scalewise.training.asynchronous import samples_per_second, staleness
from scalewise.training.results import Outcome, Update


def test_staleness_combines_the_updates_of_all_servers() -> None:
    total = staleness([Served(staleness=Counter({0: 6, 1: 2})), Served(staleness=Counter({0: 4, 3: 4})), Served()])
    assert total.histogram == {0: 10, 1: 2, 3: 4}
    assert total.max == max(total.histogram)
    assert total.mean == (2 * 1 + 4 * 3) / 16


def outcome(*times: float) -> Outcome:
    """Outcome of a worker with one update of 4 samples between each time and the next."""
    updates = [Update(0, 0, 4, 1.0, *span) for span in pairwise(times)]
    return Outcome("made up", 16, 1, "eager", "device", steps=len(updates), updates=updates)


def test_samples_per_second_counts_updates_by_their_share_of_the_window() -> None:
    """The window is from 2.9 s, the start of the late worker's last update, to 3.0 s, the end of the early worker."""
    assert samples_per_second([outcome(0.0, 1.0, 2.0, 3.0), outcome(0.9, 1.9, 2.9, 3.9)]) == pytest.approx(4 + 4)
    assert samples_per_second([outcome(0.0, 1.0, 2.0, 3.0), outcome(1.5, 2.5, 3.5, 4.5)]) is None
