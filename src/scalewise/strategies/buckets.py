"""How torch's DDP packs gradients into buckets, so that plans can say when each can leave and what it weighs."""

from __future__ import annotations

from collections.abc import Sequence

MIB = 2**20
FIRST_BUCKET_BYTES = MIB
DEFAULT_BUCKET_MB = 25


def buckets_of(ready_bytes: Sequence[int], bucket_MB: float | None) -> list[range]:
    """Which gradients go into each bucket, given their bytes in the order they become ready.

    A bucket closes when it has reached its limit, so it may be much larger. With DDP's own limit (None) the first
    bucket is small, so that communication starts early.
    """
    limits = [FIRST_BUCKET_BYTES, DEFAULT_BUCKET_MB * MIB] if bucket_MB is None else [int(bucket_MB * MIB)]
    buckets: list[range] = []
    first = filling = 0
    for position, size in enumerate(ready_bytes):
        filling += size
        if filling >= limits[min(len(buckets), len(limits) - 1)]:
            buckets.append(range(first, position + 1))
            first, filling = position + 1, 0
    return [*buckets, range(first, len(ready_bytes))] if first < len(ready_bytes) else buckets
