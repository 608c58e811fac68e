"""GPUs as a tree: the closest share a branch."""

from __future__ import annotations

from itertools import combinations

from scalewise.linking.topology import Branch, Topology


def topology(count: int, close: dict[tuple[int, int], str], otherwise: str) -> Topology:
    pairs = {pair: close.get(pair, otherwise) for pair in combinations(range(count), 2)}
    return Topology(tuple(f"GPU {number}" for number in range(count)), pairs)


def test_bridged_pairs_behind_one_host_bridge() -> None:
    found = topology(4, {(0, 1): "nvlink", (2, 3): "nvlink"}, "one host bridge")
    assert found.tree == Branch("one host bridge", (Branch("nvlink", (0, 1)), Branch("nvlink", (2, 3))))


def test_a_switch_joins_all() -> None:
    assert topology(4, {}, "nvlink").tree == Branch("nvlink", (0, 1, 2, 3))


def test_two_sockets() -> None:
    found = topology(4, {(0, 1): "one PCIe switch", (2, 3): "one NUMA node"}, "system")
    assert found.tree == Branch("system", (Branch("one PCIe switch", (0, 1)), Branch("one NUMA node", (2, 3))))


def test_one_is_a_tree_too() -> None:
    assert topology(1, {}, "system").tree == Branch("system", (0,))
