"""`--strategy auto` chooses the fastest exact strategy that is predicted for this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scalewise
from scalewise.advice import advise, one_device
from scalewise.advice.advise import choose
from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.launch.devices import device_name
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import strategy_of

TINY = "tests.tiny:float32"


def box(GBps: float, latency_us: float) -> Cluster:
    device = Device(device_name(torch.device("cpu")), 2, 8.0, 0.05, 10.0, 0.0)
    links = (Link("devices", "sockets", GBps, latency_us), Link("host-device", "memory", GBps, 0.0))
    return Cluster("here-2x-cpu", 1, 2, (device,), links, backend="gloo", knowledge="measured")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewise.probe.profile.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def machine(monkeypatch: pytest.MonkeyPatch, GBps: float, latency_us: float) -> None:
    monkeypatch.setattr(advise, "cluster_named", lambda *_: (box(GBps, latency_us), "links of a test"))


def compute_bound(request: one_device.ProfileRequest) -> one_device.OneDevice:
    """Return a profile that takes a second per sample."""
    layers = (LayerCost(name="one", parameter_bytes=4000, activation_bytes=4, flops=100),)
    steps = tuple(StepCost(batch=size, forward=size / 3, backward=size / 1.5, update=0, load=0) for size in (1, 64))
    document = ProfileDocument(
        workload=str(request.workload),
        device=request.cluster.devices[0].name,
        execution="eager",
        samples_per_epoch=64,
        parameter_bytes=4000,
        layers=layers,
        steps=steps,
    )
    return one_device.OneDevice(document, "a test", 64)


def test_auto_keeps_one_device_if_the_network_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1e-5, 1e5)
    result = scalewise.train(TINY, strategy="auto", batch=8, steps=4, device_kind="cpu")
    assert (result.strategy, result.devices, result.batch) == ("single", 1, 8)
    assert result.notes[0].startswith("auto chose one device: ")
    assert "the fastest strategy on several, " in result.notes[0]
    assert result.to_json()["strategy"] == "single"


def test_auto_uses_all_devices_for_a_compute_bound_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, 10, 10)
    monkeypatch.setattr("scalewise.advice.cluster_prediction.profile_one_device", compute_bound)
    chosen = choose(TINY, Placement(2, "cpu"), 64)
    assert chosen.devices == 2
    assert strategy_of(chosen.strategy).exact
    assert chosen.why.startswith(f"auto chose {chosen.strategy} on 2 devices: predicted 32")
    assert chosen.why.endswith(" on one")


@pytest.mark.parametrize(
    ("memory_GB", "devices", "why"),
    [
        (1e-5, 2, "; one device does not fit: needs "),
        (1e-6, 1, "although nothing is predicted to fit; one device does not fit: "),
    ],
)
def test_one_device_that_does_not_fit_has_no_time(
    monkeypatch: pytest.MonkeyPatch, memory_GB: float, devices: int, why: str
) -> None:
    small = replace(box(10, 10), devices=(replace(box(10, 10).devices[0], memory_GB=memory_GB),))
    monkeypatch.setattr(advise, "cluster_named", lambda *_: (small, "links of a test"))
    monkeypatch.setattr("scalewise.advice.cluster_prediction.profile_one_device", compute_bound)
    chosen = choose(TINY, Placement(2, "cpu"), 64)
    assert chosen.devices == devices
    assert why in chosen.why
    assert "64 s" not in chosen.why


def test_devices_1_lets_auto_use_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 10, 10)
    assert advise.most_devices(Placement(1, "cpu")) == 2


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (Placement(2, "slice"), "--strategy auto cannot choose for slices of a GPU"),
        (Placement(2, "cuda"), "leave --device-kind out"),
        (Placement(3, "cpu"), "--devices is 3, but here-2x-cpu has 2 devices"),
    ],
)
def test_auto_refuses_what_it_cannot_predict(
    monkeypatch: pytest.MonkeyPatch, placement: Placement, sentence: str
) -> None:
    machine(monkeypatch, 10, 10)
    with pytest.raises(scalewise.UserError, match=sentence):
        choose(TINY, placement, 8)
