"""Where workers and servers meet: a list in the store that workers add themselves to, and the end that closes it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

FIRST_STEP = "first step"
"""Key under which server 0 says where the run goes on."""
_END = "end"
_PATIENCE = timedelta(hours=1)


def announce(meeting: Store, who: int | str) -> int:
    """A worker's place in the list of all that ever joined: one that takes another's work over has its own."""
    mine = f"{who}/{uuid4().hex}"
    place = 0
    # Taken in one go: a place that is counted and never filled, by one that dies in between, would hold up all others.
    while meeting.compare_set(f"joined/{place}", "", mine).decode() != mine:
        place += 1
    return place


def announce_end(meeting: Store) -> None:
    """No worker follows: servers finish."""
    announce(meeting, _END)


def arrivals(meeting: Store) -> Iterator[tuple[int, int]]:
    """(place, worker) of each that joins, as it does, until the end is announced."""
    meeting = meeting.clone()  # type: ignore[attr-defined] # a client that waits is of no use to others meanwhile
    place = 0
    while (who := _wait_for(meeting, f"joined/{place}").partition("/")[0]) != _END:
        yield place, int(who)
        place += 1


def _wait_for(meeting: Store, key: str) -> str:
    while True:
        try:
            meeting.wait([key], _PATIENCE)
        except dist.DistStoreError:
            continue
        return meeting.get(key).decode()
