"""Remedies for a run that ran out of memory: only those whose planned memory fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scalewise.core.errors import (
    Accumulate,
    Failure,
    NoStrategyFits,
    RankFailed,
    Remedy,
    SmallerBatch,
    TooLarge,
    UseStrategy,
)
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.training.memory_plan import unplanned_remedies, with_remedies
from scalewise.training.results import Request
from scalewise.training.train import train

DEEP = "transformer:layers=4,width=128,context=16"
"""Transformer with 3.4 MB of weights, at most 0.3 MB per layer; training it on one sample takes 14 MB."""
FULL = Failure(0, "oom", "tried to allocate 4 MB more", "rank 0", remedies=(SmallerBatch(),))
OUT_OF_MEMORY = """
import torch

class Large(torch.nn.Linear):
    def forward(self, inputs):
        if torch.is_grad_enabled():  # not while the model is analysed before training
            torch.empty(10**15)
        return super().forward(inputs)

def model():
    return Large(4, 2)
"""
Advised = Callable[[str, str, float, int, int], Failure]


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> Advised:
    """Function (workload, strategy, GB per device, devices, batch) that returns the run's failure with remedies."""

    def failure(workload: str, strategy: str, limit_GB: float, devices: int, batch: int) -> Failure:
        monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", str(limit_GB))
        request = Request(workload, strategy_of(strategy), Settings(batch, None, 3), DataRequest(samples=256))
        return with_remedies(FULL, request, Placement(devices, "cpu"))

    return failure


def strategies_in(remedies: tuple[Remedy, ...]) -> dict[str, UseStrategy]:
    return {remedy.name: remedy for remedy in remedies if isinstance(remedy, UseStrategy)}


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("sharded", 2), ("pipeline", 2)])
def test_only_strategies_that_fit_are_suggested(strategy: str, devices: int, advised: Advised) -> None:
    """Nearly all of `linear` is one layer, which needs all its memory on one device with stages or shards too."""
    failure = advised("linear", strategy, 0.105, devices, 8)
    assert failure.too_large is not None
    assert failure.too_large.one_sample_bytes is not None
    assert failure.too_large.one_sample_bytes > 0.105e9
    [remedy] = failure.remedies
    assert isinstance(remedy, UseStrategy)
    assert (remedy.name, remedy.devices) == ("central-storage", None)
    assert remedy.planned_bytes == pytest.approx(0.045e9, rel=0.15)


def test_all_strategies_that_fit_are_suggested_with_their_device_counts(advised: Advised) -> None:
    failure = advised(DEEP, "single", 0.0065, 1, 4)
    assert failure.too_large is not None
    suggested = strategies_in(failure.remedies)
    assert list(suggested) == ["central-storage", "pipeline", "sharded"]
    assert len(suggested) == len(failure.remedies)
    assert [remedy.devices is None for remedy in suggested.values()] == [True, False, False]


def test_a_strategy_is_suggested_again_only_on_more_devices(advised: Advised) -> None:
    suggested = strategies_in(advised(DEEP, "sharded", 0.0065, 2, 4).remedies)
    assert list(suggested) == ["central-storage", "pipeline", "sharded"]
    assert suggested["sharded"].devices == 4


@pytest.mark.slow
def test_a_smaller_batch_is_suggested_if_one_sample_fits(advised: Advised) -> None:
    failure = advised(DEEP, "single", 0.1, 1, 256)
    assert failure.too_large is None
    assert failure.remedies[:2] == (SmallerBatch(), Accumulate(2))
    assert list(strategies_in(failure.remedies)) == ["pipeline", "sharded"]
    split = advised(DEEP, "pipeline", 0.02, 2, 256).remedies
    assert split[0] == SmallerBatch()
    assert not any(isinstance(remedy, Accumulate) for remedy in split)


def test_if_no_strategy_fits_the_one_that_needs_least_memory_is_named(advised: Advised) -> None:
    failure = advised("linear", "single", 0.01, 1, 8)
    assert failure.too_large == TooLarge()
    [remedy] = failure.remedies
    assert isinstance(remedy, NoStrategyFits)
    assert remedy.limit_bytes == 10_000_000
    assert remedy.least is not None
    assert remedy.least.name == "central-storage"


def test_general_remedies_are_suggested_if_the_plan_does_not_explain_the_failure(
    advised: Advised, monkeypatch: pytest.MonkeyPatch
) -> None:
    general = advised(DEEP, "single", 1.0, 1, 1).remedies
    assert general[:2] == (SmallerBatch(), Accumulate(2))
    assert general[2:] == tuple(map(UseStrategy, ("central-storage", "pipeline", "sharded")))
    monkeypatch.delenv("SCALEWISE_MEMORY_LIMIT_GB")
    request = Request(DEEP, strategy_of("single"), Settings(4, None, 3), DataRequest(samples=16))
    assert with_remedies(FULL, request, Placement(1, "cpu")).remedies == (SmallerBatch(), Accumulate(2))


def test_general_remedies_leave_out_the_strategy_that_ran() -> None:
    assert unplanned_remedies(FULL, strategy_of("pipeline"), limited=True) == (
        SmallerBatch(),
        UseStrategy("central-storage"),
        UseStrategy("sharded"),
    )
    too_large = Failure(0, "oom", "", too_large=TooLarge())
    assert unplanned_remedies(too_large, strategy_of("sharded"), limited=True) == (
        UseStrategy("central-storage"),
        UseStrategy("pipeline"),
    )


@pytest.mark.parametrize("name", ["model.py", "pipeline.py", "data_parallel.py"])
def test_remedies_do_not_depend_on_the_name_of_the_users_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(OUT_OF_MEMORY)
    with pytest.raises(RankFailed) as raised:
        train(f"{file}:model", input_shape="4", classes=2, device_kind="cpu", batch=4, steps=1, samples=8)
    failure = raised.value.failure
    assert (failure.kind, failure.too_large) == ("oom", None)
    assert failure.remedies == (SmallerBatch(), Accumulate(2))
    assert failure.location is not None
    assert (Path(failure.location.file), failure.location.line) == (file, 7)


def test_slices_share_the_memory_of_one_gpu_despite_a_larger_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.02")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=40_000_000))
    request = Request("linear", strategy_of("mirrored"), Settings(8, None, 3, load="stream"), DataRequest(samples=256))
    remedies = [with_remedies(FULL, request, Placement(devices, "slice")).remedies[0] for devices in (1, 4)]
    limits = [isinstance(remedy, NoStrategyFits) and remedy.limit_bytes for remedy in remedies]
    assert limits == [20_000_000, 10_000_000]
