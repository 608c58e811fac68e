"""Strategies that split the model over ranks are exact for any sizes, and others resume their checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scalewise.core.errors import RunFailed, UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request, bytes_per_step
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.tasks import failure_of

HERE = torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda")
SPREAD = [("tensor", 2), ("tensor", 3), ("tensor", 4), ("sharded", 2), ("sharded", 3), ("sharded", 4)]
SPREAD += [("hybrid:tensor=2", 2), ("hybrid:tensor=2", 4), ("hybrid:stages=2", 2), ("hybrid:stages=2", 4)]
Alone = Callable[..., tuple[Outcome, Path]]

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs several devices")


def _train(workload: str, strategy: str, path: Path, sessions: SessionOf, ranks: int, **more: Any) -> Outcome:
    """Train on batches of 5, then one of 3, unless `shape` is given."""
    samples, batch = more.pop("shape", (13, 5))
    settings = Settings(batch, None, more.pop("steps", 4), checkpoint=path, **more)
    chosen = strategy_of(strategy)
    request = Request(f"tests.tiny_models:{workload}", chosen, settings, DataRequest(samples=samples))
    if ranks == 0:
        return train_on(Place(0, 1, HERE), request, lambda _: None)
    outcomes: list[Outcome] = sessions(ranks, chosen).run(train_task, request)
    return next((outcome for outcome in outcomes if outcome.accuracy is not None), outcomes[0])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Return the outcome and checkpoint of single-device training."""

    @cache
    def trained(workload: str, **more: object) -> tuple[Outcome, Path]:
        path = tmp_path_factory.mktemp("alone") / "checkpoint.safetensors"
        return _train(workload, "single", path, None, 0, **more), path  # type: ignore[arg-type]

    return trained


def _weights(path: Path, kind: str = "model/") -> torch.Tensor:
    tensors = load_file(path)
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors) if name.startswith(kind)])


@pytest.mark.parametrize(("strategy", "ranks"), SPREAD)
@pytest.mark.parametrize("workload", ["transformer", "unet"])
def test_weights_equal_single_device_training(
    workload: str, strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf, alone: Alone
) -> None:
    """Train with an uneven batch and a short one; on four ranks also with a batch of two samples."""
    spread = tmp_path / "spread.safetensors"
    kinds = [("64", 1e-10, (13, 5))]
    kinds += [("32", 1e-5, (13, 5))] if ranks == 2 else [("64", 1e-10, (5, 2))] if ranks == 4 else []
    for kind, tolerance, shape in kinds:
        reference, path = alone(workload + kind, shape=shape)
        outcome = _train(workload + kind, strategy, spread, session_of, ranks, shape=shape)
        assert outcome.loss == pytest.approx(reference.loss, rel=1e-5)
        assert outcome.accuracy == pytest.approx(reference.accuracy)
        torch.testing.assert_close(_weights(spread), _weights(path), rtol=0, atol=tolerance)


def test_any_strategy_resumes_the_checkpoint_of_another(tmp_path: Path, session_of: SessionOf, alone: Alone) -> None:
    shared = tmp_path / "shared.safetensors"
    chain = [("tensor", 3), ("sharded", 4), ("single", 0), ("hybrid:tensor=2", 4), ("mirrored", 2)]
    chain += [("hybrid:stages=2", 4), ("sharded", 2), ("tensor", 2)]
    _, path = alone("transformer64", steps=2 * len(chain))
    for number, (strategy, ranks) in enumerate(chain):
        _train("transformer64", strategy, shared, session_of, ranks, steps=2 * number + 2, resume=number > 0)
    for kind in ("model/", "optimizer/"):
        torch.testing.assert_close(_weights(shared, kind), _weights(path, kind), rtol=0, atol=1e-10)


def test_saving_checkpoints_does_not_change_the_weights(tmp_path: Path, session_of: SessionOf) -> None:
    for strategy in ("tensor", "sharded"):
        plain, saving = tmp_path / "plain.safetensors", tmp_path / "saving.safetensors"
        _train("transformer64", strategy, plain, session_of, 2)
        _train("transformer64", strategy, saving, session_of, 2, checkpoint_every=2)
        assert torch.equal(_weights(plain), _weights(saving))


@pytest.mark.parametrize(("strategy", "ranks"), [("tensor", 2), ("sharded", 2), ("hybrid:tensor=2", 4)])
def test_gradient_accumulation_does_not_change_the_weights(
    strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf, alone: Alone
) -> None:
    spread = tmp_path / "spread.safetensors"
    _, path = alone("transformer64", shape=(13, 5))
    _train("transformer64", strategy, spread, session_of, ranks, accumulate=3)
    torch.testing.assert_close(_weights(spread), _weights(path), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("strategy", "ranks"), SPREAD)
@pytest.mark.parametrize("workload", ["transformer:layers=2,width=60,heads=5,context=32", "unet:width=5,size=32"])
def test_planned_bytes_equal_the_kernels_count(workload: str, strategy: str, ranks: int, session_of: SessionOf) -> None:
    """Use batch 7, which gives some ranks more samples than others."""
    chosen = strategy_of(strategy)
    request = Request(workload, chosen, Settings(7, None, 6), DataRequest(samples=42))
    session = session_of(ranks, chosen)
    outcomes: list[Outcome] = session.run(train_task, request)
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == pytest.approx(sent.planned, rel=0.01)
    plan = chosen.plan(outcomes[0].footprint, ranks, 7)  # type: ignore[arg-type]
    assert sent.busiest == pytest.approx(plan.busiest_bytes, rel=0.01)


def test_named_layers_of_a_user_model_are_split(tmp_path: Path, session_of: SessionOf, alone: Alone) -> None:
    spread = tmp_path / "spread.safetensors"
    _, path = alone("gated64")
    named = "columns=gate+up,rows=down"
    for strategy, ranks in ((f"tensor:{named}", 2), (f"tensor:{named}", 3), (f"hybrid:tensor=2,{named}", 4)):
        _train("gated64", strategy, spread, session_of, ranks)
        torch.testing.assert_close(_weights(spread), _weights(path), rtol=0, atol=1e-10)


def test_stages_of_hybrid_are_split_at_the_named_module(tmp_path: Path, session_of: SessionOf, alone: Alone) -> None:
    spread = tmp_path / "spread.safetensors"
    _, path = alone("transformer64")
    _train("transformer64", "hybrid:stages=2,cut=1,microbatches=3", spread, session_of, 4)
    torch.testing.assert_close(_weights(spread), _weights(path), rtol=0, atol=1e-10)
    wrong = strategy_of("hybrid:stages=2,cut=nowhere")
    request = Request("tests.tiny_models:transformer64", wrong, Settings(5, None, 1), DataRequest(samples=5))
    for sentence, _ in session_of(4).run(failure_of, request):
        assert "unknown module to split at 'nowhere'" in sentence


@pytest.mark.parametrize(
    ("workload", "strategy", "ranks", "sentence"),
    [
        ("gated64", "tensor", 2, "name layers with tensor:columns=LAYER+LAYER,rows=LAYER; this model has: enter, "),
        ("gated64", "tensor:columns=gate", 2, "columns=gate needs rows=... as well"),
        ("gated64", "tensor:columns=gat,rows=down", 2, "convolutional layer 'gat' (did you mean 'gate'?)"),
        ("gated64", "tensor:columns=gate+up,rows=up", 2, "'up' is named in columns and in rows"),
        ("gated64", "tensor:columns=gate+up,rows=down,head_width=2", 2, "which is not a multiple of head_width=2"),
        ("gated64", "tensor:columns=gate+up,rows=down,head_width=7", 2, "'gate' has too few heads for 2 devices: 1"),
        ("gated64", "tensor:columns=enter,rows=down", 2, "through element-wise functions or whole heads into"),
        ("misnamed64", "tensor", 2, "unknown layer in the tensor_parallel of Misnamed: 'gates' (did you mean 'gate'?)"),
        ("tied64", "tensor", 2, "tensor cannot split '2.weight', because it is shared with '0.weight'"),
        ("listed64", "sharded", 2, "'weights' is a ParameterList, which is never called; put its contents into a"),
        ("held64", "sharded", 2, "uses 'held.0.weight' without calling 'held.0' (Linear); call this layer, or use"),
        ("tied64", "sharded", 2, "'2.weight' is the same as '0.weight' of another layer; use mirrored"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_split_are_refused(workload: str, strategy: str, ranks: int, sentence: str) -> None:
    """Build the engine of one rank, which is enough because refusals come before any communication."""
    settings = Settings(5, None, 1)
    request = Request(f"tests.tiny_models:{workload}", strategy_of(strategy), settings, DataRequest(samples=5))
    with pytest.raises((UserError, RunFailed)) as caught:
        train_on(Place(0, ranks, HERE), request, lambda _: None)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "strategy"), [("normed64", "tensor:columns=gate+up,rows=down"), ("claimed64", "tensor")]
)
def test_splitting_layers_that_changes_the_model_is_refused(
    workload: str, strategy: str, session_of: SessionOf
) -> None:
    request = Request(
        f"tests.tiny_models:{workload}", strategy_of(strategy), Settings(5, None, 1), DataRequest(samples=5)
    )
    for sentence, _ in session_of(2).run(failure_of, request):
        assert "the input of 'down' is not a part of its input in the whole model (largest difference" in sentence
