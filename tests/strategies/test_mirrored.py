"""Gradient buckets equal those of DDP."""

from __future__ import annotations

import pytest

from scalewise.data.dataset import DataRequest
from scalewise.models.footprint import footprint_of
from scalewise.models.resolve import resolve
from scalewise.strategies.mirrored import MIB, buckets_of
from tests.conftest import SessionOf
from tests.strategies.tasks import ddp_buckets


@pytest.mark.parametrize(
    ("ready", "bucket_MB", "buckets"),
    [
        ([10, 20, 30], None, [range(3)]),
        ([MIB, 10, 20], None, [range(1), range(1, 3)]),
        ([MIB, 20 * MIB, 6 * MIB, 7], None, [range(1), range(1, 3), range(3, 4)]),
        ([MIB // 2, MIB // 2, 5], 1.0, [range(2), range(2, 3)]),
        ([], None, []),
    ],
)
def test_a_bucket_closes_when_it_reaches_its_limit(
    ready: list[int], bucket_MB: float | None, buckets: list[range]
) -> None:
    assert buckets_of(ready, bucket_MB) == buckets


@pytest.mark.parametrize(
    "workload", ["conv", "linear", "unet", "transformer", "synthetic:parameters=3000000,flops=6e6"]
)
@pytest.mark.parametrize("bucket_MB", [None, 1.0, 0.1])
def test_buckets_equal_those_that_ddp_reports(workload: str, bucket_MB: float | None, session_of: SessionOf) -> None:
    footprint = footprint_of(resolve(workload), resolve(workload).data(DataRequest(samples=2)))
    sizes = footprint.parameter_bytes
    planned = [sum(sizes[position] for position in bucket) for bucket in buckets_of(sizes, bucket_MB)]
    assert planned == session_of(2).run(ddp_buckets, workload, bucket_MB)[0]
