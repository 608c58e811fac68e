"""What a workload weighs, as plans need it."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from torch import nn

from scalewise.data.data import DataRequest
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.reached import unreached_by
from scalewise.workloads.resolve import resolve


@pytest.mark.parametrize(
    ("name", "read"),
    [
        # A bias is never read again, nor is the first layer, whose inputs need no gradient, nor a table; but of a norm
        # even the bias is.
        ("linear", [100 * 10, 1000 * 100, 10 * 10]),
        (
            "transformer:layers=1,width=8,heads=1,context=4,vocabulary=128",
            [8 * 8] * 4 + [8 * 32] * 2 + [8] * 6 + [8 * 128],
        ),
    ],
)
def test_weights_that_backward_reads_are_known(name: str, read: list[int]) -> None:
    workload = resolve(name)
    footprint = footprint_of(workload, workload.data(DataRequest(samples=4)))
    weighed = zip(footprint.parameter_bytes, footprint.read_again, strict=True)
    assert sorted(size // 4 for size, again in weighed if again) == sorted(read)


def test_batch_norm_is_weighed_though_it_refuses_a_lone_sample() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    workload = replace(resolve("tests.tiny:float32"), model=model)
    data = workload.data(DataRequest())
    assert sum(footprint_of(workload, data).parameter_bytes) == 4 * (6 * 8 + 8 + 16 + 8 * 2 + 2)
    assert unreached_by(workload, data) == frozenset()


def test_the_model_that_was_weighed_does_not_stay() -> None:
    made: list[weakref.ref[nn.Module]] = []

    def model() -> nn.Module:
        layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        made.append(weakref.ref(layers))
        return layers

    workload = replace(resolve("tests.tiny:float32"), model=model)
    footprint_of(workload, workload.data(DataRequest()))
    gc.collect()
    assert [each() for each in made] == [None]
