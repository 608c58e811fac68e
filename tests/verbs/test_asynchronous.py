"""The figures of asynchronous runs."""

from __future__ import annotations

from collections import Counter

from scalewise.servers.server import Served
from scalewise.verbs.asynchronous import staleness


def test_mean_most_and_histogram_are_of_the_same_updates_on_all_servers() -> None:
    seen = staleness([Served(staleness=Counter({0: 6, 1: 2})), Served(staleness=Counter({0: 4, 3: 4})), Served()])
    assert seen.histogram == {0: 10, 1: 2, 3: 4}
    assert seen.max == max(seen.histogram)
    assert seen.mean == (2 * 1 + 4 * 3) / 16
