"""The figures of asynchronous runs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from scalewise.servers.server import Served
from scalewise.training.outcome import Outcome, Update
from scalewise.verbs.asynchronous import samples_per_second, staleness


def test_mean_most_and_histogram_are_of_the_same_updates_on_all_servers() -> None:
    seen = staleness([Served(staleness=Counter({0: 6, 1: 2})), Served(staleness=Counter({0: 4, 3: 4})), Served()])
    assert seen.histogram == {0: 10, 1: 2, 3: 4}
    assert seen.max == max(seen.histogram)
    assert seen.mean == (2 * 1 + 4 * 3) / 16


def worked(*moments: float) -> Outcome:
    """An update of 4 samples from each moment to the next."""
    updates = [Update(0, 0, 4, 1.0, *both) for both in pairwise(moments)]
    return Outcome("made up", 16, 1, "eager", "device", steps=len(updates), updates=updates)


def test_samples_per_second_count_updates_as_far_as_they_lie_in_the_time_that_counts() -> None:
    """Of three updates each, 0.1 s lies between the start of the one's last and the end of the other's."""
    assert samples_per_second([worked(0.0, 1.0, 2.0, 3.0), worked(0.9, 1.9, 2.9, 3.9)]) == pytest.approx(4 + 4)
    assert samples_per_second([worked(0.0, 1.0, 2.0, 3.0), worked(1.5, 2.5, 3.5, 4.5)]) is None
