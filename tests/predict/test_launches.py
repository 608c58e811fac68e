"""Steps that consist of kernel launches, or of passes over the weights, whatever the batch."""

from __future__ import annotations

import pytest
from torch import nn

from scalewise.advice.advise import advise
from scalewise.advice.result import Advice

TINY = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def tiny() -> Advice:
    return advise(TINY, input_shape=(4,), cluster="4x-t4", batch=64, strategy=["tensor", "mirrored"])


def test_split_layers_launch_as_many_kernels_as_whole_ones(tiny: Advice) -> None:
    one, *several = [row for row in tiny.rows if row.name in ("single", "tensor")]
    assert one.prediction.bottleneck == "launch"
    for row in several:
        for phase in ("forward", "backward"):
            assert row.prediction.phases[phase] >= one.prediction.phases[phase] * 0.99
        assert row.prediction.bottleneck == "launch"
    assert not tiny.verdict.add_devices


def test_a_step_that_streams_its_weights_is_not_launch_bound() -> None:
    """With two samples the linear model spends its step on Adam's passes over 46 MB of weights."""
    advice = advise("linear", cluster="4x-t4", batch=2, devices=[1], strategy=["single"])
    assert advice.rows[0].prediction.bottleneck == "compute"


def test_an_error_that_one_device_and_several_share_leaves_their_ratio(tiny: Advice) -> None:
    prediction = next(row.prediction for row in tiny.rows if row.name == "mirrored")
    assert prediction.common[0] < 0.7 < 1.4 < prediction.common[1]
    assert prediction.apart[0] < 1 - prediction.common[0]
    assert prediction.apart[1] < prediction.common[1] - 1
