"""How GPUs are joined, as NVML tells it: the closest ones share a branch of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

Pairs = dict[tuple[int, int], str]

LEVELS = (
    "nvlink",
    "same board",
    "one PCIe switch",
    "several PCIe switches",
    "one host bridge",
    "one NUMA node",
    "system",
)
"""From the closest on."""


@dataclass(frozen=True)
class Branch:
    """Devices, or groups of them, joined by the same thing."""

    joined_by: str
    members: tuple[int | Branch, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(
            d for member in self.members for d in (member.devices if isinstance(member, Branch) else (member,))
        )


@dataclass(frozen=True)
class Topology:
    """Names of all GPUs, and what is between each two: a level, the closest that holds."""

    names: tuple[str, ...]
    between: Pairs = field(default_factory=dict)

    @property
    def tree(self) -> Branch:
        groups: list[int | Branch] = list(range(len(self.names)))
        for level in LEVELS:
            groups = self._joined(groups, level)
        return groups[0] if len(groups) == 1 and isinstance(groups[0], Branch) else Branch("system", tuple(groups))

    def _joined(self, groups: Sequence[int | Branch], level: str) -> list[int | Branch]:
        """Groups whose devices are all joined at this level or closer become one."""
        left, made = list(groups), []
        while left:
            together = [left.pop(0)]
            for other in list(left):
                if all(self._close(one, other, level) for one in together):
                    together.append(other)
                    left.remove(other)
            made.append(together[0] if len(together) == 1 else Branch(level, tuple(together)))
        return made

    def _close(self, one: int | Branch, other: int | Branch, level: str) -> bool:
        allowed = LEVELS[: LEVELS.index(level) + 1]
        return all(self.between[min(a, b), max(a, b)] in allowed for a in _devices(one) for b in _devices(other))


def _devices(member: int | Branch) -> tuple[int, ...]:
    return member.devices if isinstance(member, Branch) else (member,)


def nvml_topology() -> Topology | None:
    """None where there is no NVIDIA driver, or no GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        if not handles:
            return None
        between = {(a, b): _between(handles[a], handles[b]) for a, b in combinations(range(len(handles)), 2)}
        return Topology(tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles), between)
    finally:
        pynvml.nvmlShutdown()


def _between(one: object, other: object) -> str:
    import pynvml

    if _bridged(one, other):
        return "nvlink"
    ancestors = {
        pynvml.NVML_TOPOLOGY_INTERNAL: "same board",
        pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
        pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
        pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "one host bridge",
        pynvml.NVML_TOPOLOGY_NODE: "one NUMA node",
    }
    try:
        return ancestors.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other), "system")
    except pynvml.NVMLError:
        return "system"


def _bridged(one: object, other: object) -> bool:
    """Whether NVLink, directly or through switches, gives them peer-to-peer access."""
    import pynvml

    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)
