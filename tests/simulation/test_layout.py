"""Which host every rank is on, and which hosts are alike, however many there are."""

from __future__ import annotations

from collections import Counter

import pytest

from scalewise.simulation.layout import Layout

LAYOUTS = [(8,), (8, 8, 8), (8, 8, 3), (1, 1, 4, 4, 4, 2), (2, 4, 2, 4)]


@pytest.mark.parametrize("per_host", LAYOUTS)
def test_ranks_fill_one_host_after_the_other(per_host: tuple[int, ...]) -> None:
    layout = Layout(per_host)
    hosts = [host for host, size in enumerate(per_host) for _ in range(size)]
    assert [layout.host_of(rank) for rank in range(layout.workers)] == hosts
    assert [layout.first_of(host) for host in range(layout.hosts)] == [
        hosts.index(host) for host in range(layout.hosts)
    ]


@pytest.mark.parametrize("per_host", LAYOUTS)
def test_alike_hosts_are_those_with_as_many_ranks_in_a_row_but_for_the_one_apart(per_host: tuple[int, ...]) -> None:
    layout = Layout(per_host)
    for first in range(layout.workers):
        for end in range(first + 1, layout.workers + 1):
            for apart in range(-1, layout.hosts + 1):
                here = Counter(layout.host_of(rank) for rank in range(first, end))
                kinds = {host: (count, host == apart) for host, count in here.items()}
                told = [
                    (next(host for host in here if kinds[host] == kind), kind[0], list(kinds.values()).count(kind))
                    for kind in dict.fromkeys(kinds.values())
                ]
                assert list(layout.alike_hosts(first, end, apart)) == told


def test_many_hosts_are_few_runs() -> None:
    """What a simulation looks at grows with the kinds of hosts, not with their number."""
    layout = Layout((8,) * 100_000 + (3,))
    assert len(layout.runs) == 2
    assert list(layout.alike_hosts(5, layout.workers, 70_000)) == [(0, 3, 2), (1, 8, 99_998), (70_000, 8, 1)]
