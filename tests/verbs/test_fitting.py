"""Who runs out of memory is told of what is planned to fit, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from scalewise.data.data import DataRequest
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.request import Request
from scalewise.verbs.fitting import advice_for

DEEP = "transformer:layers=4,width=128,context=16"
"""3.4 MB of weights, of which no layer has more than 0.3; 14 MB to train one sample at a time."""
Advice = Callable[[str, str, float, int, int], str | None]


@pytest.fixture
def advice(monkeypatch: pytest.MonkeyPatch) -> Advice:
    """Of a run of a workload under a strategy, so many GB of each device allowed, on devices, with a batch."""

    def advice(workload: str, strategy: str, limit_GB: float, devices: int, batch: int) -> str | None:
        monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", str(limit_GB))
        request = Request(workload, strategy_of(strategy), Settings(batch, None, 3), DataRequest(samples=256))
        return advice_for(request, Placement(devices, "cpu"))

    return advice


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("sharded", 2), ("pipeline", 2)])
def test_only_what_fits_is_named_and_a_batch_only_where_it_helps(strategy: str, devices: int, advice: Advice) -> None:
    """Nearly all of `linear` is one layer, which neither stages nor shards make smaller while it works."""
    told = advice("linear", strategy, 0.105, devices, 8)
    assert told is not None
    too_large, suggested = told.split("; ")
    assert too_large.startswith("a batch of one would take 0.")
    assert too_large.endswith(" GB too")
    assert suggested.startswith("--strategy central-storage trains models larger than the device (planned: 0.04")
    assert suggested.endswith(" GB)")


def test_where_all_fit_all_are_named_with_the_devices_that_takes(advice: Advice) -> None:
    told = advice(DEEP, "single", 0.0065, 1, 4)
    assert told is not None
    assert "; --strategy central-storage, pipeline or sharded trains models larger than the device (planned: " in told
    assert told.count(" with --devices ") == 2
    assert "--batch" not in told


def test_a_strategy_is_suggested_again_only_on_more_devices(advice: Advice) -> None:
    told = advice(DEEP, "sharded", 0.0065, 2, 4)
    assert told is not None
    assert "--strategy central-storage, pipeline or sharded trains" in told
    assert "sharded 0.00" in told
    assert told.endswith(" GB with --devices 4)")


def test_a_smaller_batch_is_suggested_where_one_sample_fits(advice: Advice) -> None:
    told = advice(DEEP, "single", 0.1, 1, 256)
    assert told is not None
    assert told.startswith("a smaller --batch, or --accumulate 2, needs less, and --strategy pipeline or sharded")
    assert str(advice(DEEP, "pipeline", 0.02, 2, 256)).startswith("a smaller --batch needs less")


def test_where_nothing_fits_that_is_said_with_what_needs_least(advice: Advice) -> None:
    told = advice("linear", "single", 0.01, 1, 8)
    assert told is not None
    assert told.startswith(
        "the model's weights do not fit, and no strategy is planned to fit 0.01 GB: central-storage needs least, 0.04"
    )


def test_without_a_limit_or_against_the_plan_nothing_is_known_better(
    advice: Advice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert advice(DEEP, "single", 1.0, 1, 1) is None
    monkeypatch.delenv("SCALEWISE_MEMORY_LIMIT_GB")
    request = Request(DEEP, strategy_of("single"), Settings(4, None, 3), DataRequest(samples=16))
    assert advice_for(request, Placement(1, "cpu")) is None


def test_slices_share_the_memory_of_one_gpu_whatever_each_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.02")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=40_000_000))
    request = Request("linear", strategy_of("mirrored"), Settings(8, None, 3, load="stream"), DataRequest(samples=256))
    told = {devices: advice_for(request, Placement(devices, "slice")) for devices in (1, 4)}
    assert "no strategy is planned to fit 0.02 GB: " in str(told[1])
    assert "no strategy is planned to fit 0.01 GB: " in str(told[4])
