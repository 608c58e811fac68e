"""Networks between hosts, as one flow sees them."""

from __future__ import annotations

from scalewise.clusters.cluster import Link

_LINE = "1500-byte frames carry 94.9 % of line rate; HKBU-HPML/MG-WFBP: 523 us for 14 steps over 10 GbE"
_IB = "NVIDIA/nccl src/graph/topo.h: 12 GB/s for 100 Gb/s, in proportion; tuning.cc: 14 us"


def _hosts(kind: str, GBps: float, latency_us: float, source: str) -> Link:
    return Link("hosts", kind, GBps, latency_us, shared=True, source=source)


NETWORKS: dict[str, Link] = {
    "1gbe": _hosts("1gbe", 0.1186, 37, _LINE),
    "10gbe": _hosts("10gbe", 1.186, 37, _LINE),
    "25gbe": _hosts("25gbe", 2.97, 37, _LINE),
    "100gbe": _hosts("100gbe", 11.9, 37, _LINE),
    "infiniband-56": _hosts("infiniband-56", 6.72, 14, _IB),
    "infiniband-100": _hosts("infiniband-100", 12.0, 14, _IB),
    "infiniband-200": _hosts("infiniband-200", 24.0, 14, _IB),
    "infiniband-400": _hosts("infiniband-400", 48.0, 14, _IB),
}
"""shared: the ports of a host, however many devices it has; both ways at once."""
