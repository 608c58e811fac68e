"""GPUs as a tree of groups with the closest connections."""

from __future__ import annotations

from itertools import combinations

from scalewise.probe.link_benchmarks import Branch, Topology


def topology(count: int, close: dict[tuple[int, int], str], otherwise: str) -> Topology:
    pairs = {pair: close.get(pair, otherwise) for pair in combinations(range(count), 2)}
    return Topology(tuple(f"GPU {number}" for number in range(count)), pairs)


def test_bridged_pairs_behind_one_host_bridge() -> None:
    gpus = topology(4, {(0, 1): "nvlink", (2, 3): "nvlink"}, "one host bridge")
    assert gpus.tree == Branch("one host bridge", (Branch("nvlink", (0, 1)), Branch("nvlink", (2, 3))))


def test_all_gpus_behind_one_switch_form_one_group() -> None:
    assert topology(4, {}, "nvlink").tree == Branch("nvlink", (0, 1, 2, 3))


def test_two_sockets() -> None:
    gpus = topology(4, {(0, 1): "one PCIe switch", (2, 3): "one NUMA node"}, "system")
    assert gpus.tree == Branch("system", (Branch("one PCIe switch", (0, 1)), Branch("one NUMA node", (2, 3))))


def test_one_gpu_is_a_tree() -> None:
    assert topology(1, {}, "system").tree == Branch("system", (0,))
