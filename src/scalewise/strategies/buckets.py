"""How torch's DDP packs gradients into buckets, so that plans can say when each can leave and what it weighs."""

from __future__ import annotations

from collections.abc import Iterable

MIB = 2**20
FIRST_BUCKET_BYTES = MIB
DEFAULT_BUCKET_MB = 25


def buckets_of(ready_bytes: Iterable[int], bucket_MB: float | None) -> list[int]:
    """Bytes of each bucket, given the gradients' bytes in the order they become ready.

    A bucket closes when it has reached its limit, so it may be much larger. With DDP's own limit (None) the first
    bucket is small, so that communication starts early.
    """
    limits = [FIRST_BUCKET_BYTES, DEFAULT_BUCKET_MB * MIB] if bucket_MB is None else [int(bucket_MB * MIB)]
    buckets: list[int] = []
    filling = 0
    for size in ready_bytes:
        filling += size
        if filling >= limits[min(len(buckets), len(limits) - 1)]:
            buckets.append(filling)
            filling = 0
    return [*buckets, filling] if filling else buckets
