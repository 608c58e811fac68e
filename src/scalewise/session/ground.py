"""What ranks stand on: a store, rehearsed hosts, quotas, slices; set up before them and removed after them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.session.hosts import Host, call_on, rehearse
from scalewise.session.placement import Placement
from scalewise.session.quota import quotas
from scalewise.session.rendezvous import LOOPBACK, open_store
from scalewise.session.slices import slices
from scalewise.step.room import MEMORY_LIMIT

START_SECONDS = 120.0


@dataclass(frozen=True)
class Ground:
    """Shared by all crews of a session."""

    store: TCPStore
    hosts: tuple[Host, ...]
    """Workers' hosts first, then one for each server; none if nothing is rehearsed."""
    quotas: Mapping[int, Path]
    environment: Mapping[str, str]


@contextmanager
def prepare(placement: Placement) -> Iterator[Ground]:
    """Gone when the block ends, or this process does."""
    with ExitStack() as held:
        hosts: list[Host] = []
        if placement.link:
            hosts = held.enter_context(rehearse(placement.hosts + placement.servers, placement.link))
        groups = held.enter_context(quotas(placement.slow, placement.cores_per_device))
        sliced = placement.device_kind == "slice"
        environment = held.enter_context(slices(placement.devices, placement.slice_percent)) if sliced else {}
        limit = {MEMORY_LIMIT: os.environ[MEMORY_LIMIT]} if MEMORY_LIMIT in os.environ else {}
        yield Ground(_open_store(hosts), tuple(hosts), groups, {**environment, **limit})


def _open_store(hosts: list[Host]) -> TCPStore:
    if not hosts:
        return open_store(LOOPBACK, START_SECONDS)
    first = hosts[0]
    return call_on(first, lambda: open_store(first.address, START_SECONDS))
