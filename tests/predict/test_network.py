"""Placement of ranks on hosts, and grouping of equal hosts."""

from __future__ import annotations

from collections import Counter

import pytest

from scalewise.predict.network import Layout

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
def test_hosts_are_grouped_by_their_number_of_ranks_except_the_one_apart(per_host: tuple[int, ...]) -> None:
    layout = Layout(per_host)
    for first in range(layout.workers):
        for end in range(first + 1, layout.workers + 1):
            for apart in range(-1, layout.hosts + 1):
                ranks = Counter(layout.host_of(rank) for rank in range(first, end))
                kinds = {host: (count, host == apart) for host, count in ranks.items()}
                groups = [
                    (next(host for host in ranks if kinds[host] == kind), kind[0], list(kinds.values()).count(kind))
                    for kind in dict.fromkeys(kinds.values())
                ]
                assert list(layout.alike_hosts(first, end, apart)) == groups


def test_thousands_of_hosts_are_few_runs() -> None:
    """The cost of a simulation depends on the number of kinds of hosts, not on the number of hosts."""
    layout = Layout((8,) * 100_000 + (3,))
    assert len(layout.runs) == 2
    assert list(layout.alike_hosts(5, layout.workers, 70_000)) == [(0, 3, 2), (1, 8, 99_998), (70_000, 8, 1)]
