"""Every exact strategy gives the weights of single-device training, sends the planned bytes and times all phases."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import load_file

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request, bytes_per_step
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf

RANKS = [1] if DEVICE_KIND == "cuda" else [1, 2, 3, 4]
HERE = torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda")

EXACT = [name for name, kind in STRATEGIES.items() if kind().exact and name != "single"]
SERVED = ["parameter-server:servers=2", "parameter-server-async:max_staleness=0"]
MORE = ["hybrid:stages=2"]


def on_ranks(strategies: list[str]) -> list[tuple[str, int]]:
    """Return all pairs of strategy and rank count; hybrid needs an even number of ranks."""
    return [(name, ranks) for name in strategies for ranks in RANKS if not (name.startswith("hybrid") and ranks % 2)]


SHAPES = {
    "batch divides": (24, 12),
    "batch does not divide": (25, 5),
    "short last batch": (13, 5),
    "batch smaller than N": (7, 2),
    "dataset smaller than N": (3, 3),
    "one sample": (1, 1),
}


def _train(
    strategy: Strategy, kind: str, shape: str, path: Path, sessions: SessionOf, ranks: int, **more: int
) -> Outcome:
    samples, batch = SHAPES[shape]
    settings = Settings(batch, None, 5, checkpoint=path, **more)  # type: ignore[arg-type]
    request = Request(f"tests.tiny:{kind}", strategy, settings, DataRequest(samples=samples))
    if ranks == 0:
        return train_on(Place(0, 1, HERE), request, lambda _: None)
    outcomes: list[Outcome] = sessions(ranks, strategy).run(train_task, request)
    return outcomes[0]


def _weights(path: Path) -> torch.Tensor:
    tensors = load_file(path)
    return torch.cat([tensors[name].flatten() for name in sorted(tensors) if name.startswith("model/")])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[float, torch.Tensor]]:
    """Return the loss and the weights of single-device training."""

    @cache
    def trained(kind: str, shape: str) -> tuple[float, torch.Tensor]:
        path = tmp_path_factory.mktemp("alone") / "checkpoint.safetensors"
        return _train(strategy_of("single"), kind, shape, path, None, 0).loss, _weights(path)  # type: ignore[arg-type]

    return trained


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize(("strategy", "ranks"), on_ranks([*EXACT, *SERVED, *MORE]))
def test_weights_equal_single_device_training(
    strategy: str,
    ranks: int,
    kind: str,
    tolerance: float,
    shape: str,
    tmp_path: Path,
    session_of: SessionOf,
    alone: Callable[[str, str], tuple[float, torch.Tensor]],
) -> None:
    spread = tmp_path / "spread.safetensors"
    loss, weights = alone(kind, shape)
    outcome = _train(strategy_of(strategy), kind, shape, spread, session_of, ranks)
    assert outcome.loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(_weights(spread), weights, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("parameter-server:piece_MB=0.5", 2),
        ("parameter-server:servers=2,piece_MB=0.5", 2),
        ("parameter-server-async:max_staleness=0,piece_MB=0.5", 2),
    ],
)
@pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
def test_weights_that_are_also_read_detached_equal_single_device_training(
    strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf
) -> None:
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("alone", "spread")}
    requests = {
        name: Request(
            "tests.tiny_detached:detached",
            strategy_of(strategy if name == "spread" else "single"),
            Settings(16, steps=12, checkpoint=path),
            DataRequest(samples=64),
        )
        for name, path in paths.items()
    }
    train_on(Place(0, 1, HERE), requests["alone"], lambda _: None)
    session_of(ranks, requests["spread"].strategy).run(train_task, requests["spread"])
    torch.testing.assert_close(_weights(paths["spread"]), _weights(paths["alone"]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", ["mirrored", "ring", "parameter-server", "central-storage"])
@pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
def test_gradient_accumulation_does_not_change_the_weights(
    strategy: str, tmp_path: Path, session_of: SessionOf
) -> None:
    alone, spread = tmp_path / "alone.safetensors", tmp_path / "spread.safetensors"
    _train(strategy_of("single"), "float64", "short last batch", alone, session_of, 0)
    _train(strategy_of(strategy), "float64", "short last batch", spread, session_of, 2, accumulate=3)
    torch.testing.assert_close(_weights(spread), _weights(alone), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    on_ranks(
        [
            *EXACT,
            *SERVED,
            *MORE,
            "parameter-server:servers=3,piece_MB=0.5",
            "parameter-server-async",
            "mirrored:bucket_MB=1",
            "mirrored:compress=fp16",
            "mirrored:compress=powersgd",
        ]
    ),
)
def test_planned_bytes_equal_the_kernels_count_and_phases_sum_to_the_step_time(
    strategy: str, ranks: int, session_of: SessionOf
) -> None:
    chosen = strategy_of(strategy)
    workload = "synthetic:parameters=600000,flops=2000000"
    steps = (
        5 if chosen.exact else 12
    )  # PowerSGD starts with whole gradients, asynchronous workers start at different times
    request = Request(workload, chosen, Settings(12, steps=steps), DataRequest(samples=48))
    session = session_of(ranks, chosen)
    outcomes: list[Outcome] = session.run(train_task, request)
    sent = bytes_per_step(request, session.placement, outcomes)
    copies = sent.traced_by == "counted copies"
    assert copies == (strategy == "central-storage")
    if DEVICE_KIND == "cuda" and not copies:
        assert not sent.traced
    else:
        assert sent.traced == pytest.approx(sent.planned, rel=0.01)
        plan = chosen.plan(outcomes[0].footprint, ranks, 12)  # type: ignore[arg-type]
        steps = ranks if strategy == "parameter-server-async" else 1  # the plan has one update by every worker
        assert sent.planned * steps == plan.bytes_per_step
        assert sent.busiest * steps == pytest.approx(plan.busiest_bytes, rel=0.01)
    assert (sent.planned > 0) == (ranks > 1 or chosen.servers > 0 or copies)
    for outcome in outcomes:
        if not outcome.step_seconds:  # other workers did all steps of this asynchronous worker
            continue
        assert sum(outcome.phases.values()) == pytest.approx(median(outcome.step_seconds), rel=0.05)


@pytest.mark.skipif(DEVICE_KIND != "cpu", reason="on a GPU the epoch time is the sum of timed steps")
@pytest.mark.parametrize("strategy", [*EXACT, *SERVED, *MORE, "parameter-server-async"])
def test_phases_cover_the_whole_time_of_the_training_loop(strategy: str, session_of: SessionOf) -> None:
    chosen = strategy_of(strategy)
    workload = "synthetic:parameters=600000,flops=20000000"
    request = Request(workload, chosen, Settings(12, epochs=3), DataRequest(samples=72))
    outcomes: list[Outcome] = session_of(2, chosen).run(train_task, request)
    for outcome in filter(lambda outcome: outcome.step_seconds, outcomes):
        assert _fraction_in_phases(outcome) == pytest.approx(1, abs=0.05)


def _fraction_in_phases(outcome: Outcome) -> float:
    """Return the fraction of the loop's own time that phases cover, in the least disturbed epoch."""
    if outcome.updates:
        elapsed = sum(update.ended - update.started for update in outcome.updates[-len(outcome.step_seconds) :])
        return sum(outcome.step_seconds) / elapsed
    steps = len(outcome.all_seconds) // len(outcome.epoch_seconds)
    return max(
        sum(outcome.all_seconds[epoch * steps : (epoch + 1) * steps]) / seconds
        for epoch, seconds in enumerate(outcome.epoch_seconds)
    )
