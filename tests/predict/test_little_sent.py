"""Steps that send almost nothing take as long as on one device."""

from __future__ import annotations

import pytest

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.catalogue import catalogue, cluster_of
from scalewise.predict.predictor import Predictor
from scalewise.strategies.registry import strategy_of

SECONDS, BATCH = 0.1, 32
TINY = ProfileDocument(
    workload="tiny",
    device="GPU",
    execution="eager",
    samples_per_epoch=64,
    parameter_bytes=4000,
    layers=tuple(LayerCost(name=f"{n}", parameter_bytes=400, activation_bytes=0, flops=1) for n in range(10)),
    steps=(StepCost(batch=BATCH, forward=SECONDS / 3, backward=SECONDS * 2 / 3, update=0, load=0),),
)
COMPOSED = ("8 x rtx-4090, 2 sockets", "4 x t4, 4 hosts", "8 x h100-nvlink, 4 hosts", "4 x rtx-3090, 2 hosts, 1gbe")
NAMES = [name for name, cluster in catalogue().items() if cluster.size <= 64]


@pytest.mark.parametrize("strategy", ["mirrored", "ring"])
@pytest.mark.parametrize("name", [*NAMES, *COMPOSED])
def test_a_step_that_sends_almost_nothing_is_as_long_as_on_one_device(name: str, strategy: str) -> None:
    cluster = cluster_of(name)
    for devices in {2, cluster.size}:
        step = Predictor(TINY, cluster).simulate(strategy_of(strategy), devices, BATCH * devices)
        assert step.step_seconds == pytest.approx(SECONDS, rel=0.01)
