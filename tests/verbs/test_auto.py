"""`--strategy auto`: the best exact strategy that is predicted for this machine, at the batch given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import scalewise
from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost
from scalewise.session.hardware import device_name
from scalewise.session.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.verbs import auto, one_device
from scalewise.verbs.auto import choose

TINY = "tests.tiny:float32"


def box(GBps: float, latency_us: float) -> Cluster:
    device = Device(device_name(torch.device("cpu")), 2, 8.0, 0.05, 10.0, 0.0)
    links = (Link("devices", "sockets", GBps, latency_us), Link("host-device", "memory", GBps, 0.0))
    return Cluster("here-2x-cpu", 1, 2, (device,), links, backend="gloo", knowledge="measured")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewise.verbs.profiler.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def machine(monkeypatch: pytest.MonkeyPatch, GBps: float, latency_us: float) -> None:
    monkeypatch.setattr(auto, "cluster_named", lambda *_: (box(GBps, latency_us), "links of a test"))


def compute_bound(asked: one_device.Asked) -> one_device.Known:
    """A second for every sample."""
    layers = (LayerCost(name="one", parameter_bytes=4000, activation_bytes=4, flops=100),)
    steps = tuple(StepCost(batch=size, forward=size / 3, backward=size / 1.5, update=0, load=0) for size in (1, 64))
    document = ProfileDocument(
        workload=str(asked.workload),
        device=asked.cluster.devices[0].name,
        execution="eager",
        samples_per_epoch=64,
        parameter_bytes=4000,
        layers=layers,
        steps=steps,
    )
    return one_device.Known(document, "a test", 64)


def test_a_model_that_a_network_would_choke_stays_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1e-5, 1e5)
    result = scalewise.train(TINY, strategy="auto", batch=8, steps=4, device_kind="cpu")
    assert (result.strategy, result.devices, result.batch) == ("single", 1, 8)
    assert result.notes[0].startswith("auto chose one device: ")
    assert "the best of several, " in result.notes[0]
    assert result.to_json()["strategy"] == "single"


def test_one_that_only_computes_gets_all_devices_and_an_exact_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 10, 10)
    monkeypatch.setattr("scalewise.verbs.advise.known_of", compute_bound)
    chosen = choose(TINY, Placement(2, "cpu"), 64)
    assert chosen.devices == 2
    assert strategy_of(chosen.strategy).exact
    assert chosen.why.startswith(f"auto chose {chosen.strategy} on 2 devices: 32")
    assert chosen.why.endswith(" on one")


def test_one_device_means_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 10, 10)
    assert auto.most_devices(Placement(1, "cpu")) == 2


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (Placement(2, "slice"), "--strategy auto knows cpu and cuda devices, not slices"),
        (Placement(2, "cuda"), "leave --device-kind out"),
        (Placement(3, "cpu"), "here-2x-cpu has 2 devices, not 3"),
    ],
)
def test_what_it_cannot_say_is_refused(monkeypatch: pytest.MonkeyPatch, placement: Placement, sentence: str) -> None:
    machine(monkeypatch, 10, 10)
    with pytest.raises(scalewise.UserError, match=sentence):
        choose(TINY, placement, 8)
