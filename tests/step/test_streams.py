"""Streams of random numbers."""

from __future__ import annotations

import pytest
import torch

from scalewise.step.streams import Stream, states


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def drawn() -> list[float]:
    return torch.rand(3).tolist()


def test_the_first_stream_goes_on_as_on_one_device_and_others_are_their_own() -> None:
    expected = drawn()
    found = []
    for home in range(3):
        torch.manual_seed(7)
        Stream(7, home, 3).begin()
        found.append(drawn())
    assert found[0] == expected
    assert len({tuple(each) for each in found}) == 3


def test_a_stream_depends_on_the_seed() -> None:
    Stream(7, 1, 2).begin()
    first = drawn()
    Stream(8, 1, 2).begin()
    assert drawn() != first


def test_ranks_go_on_from_their_own_states() -> None:
    kept = [states()]
    torch.manual_seed(8)
    kept.append(states())
    expected = drawn()
    Stream(7, 1, 2).go_on(kept, 5)
    assert drawn() == expected


def test_with_other_ranks_a_stream_begins_anew_and_does_not_repeat_what_it_drew() -> None:
    Stream(7, 1, 2).begin()
    first = drawn()
    found = []
    for steps in (5, 5, 6):
        Stream(7, 1, 2).go_on([states()], steps)
        found.append(drawn())
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert first not in found
