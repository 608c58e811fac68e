"""Layers that a model never calls stay unchanged, as on one device, and the bytes sent equal the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from scalewise.core.errors import UserError
from scalewise.core.training_options import Settings
from scalewise.engines.base import Place
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request, bytes_per_step
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.test_contract import HERE

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
EXCHANGING = ["data-parallel", "mirrored", "ring", "central-storage", "parameter-server"]


def _request(kind: str, strategy: Strategy, path: Path | None = None, optimizer: str = "adamw") -> Request:
    return Request(f"tests.tiny_unreached:{kind}", strategy, Settings(4, None, 8, optimizer, checkpoint=path))


def _tensors(path: Path) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if not name.startswith("random/")}


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
@pytest.mark.parametrize(
    ("strategy", "ranks", "kind"),
    [
        *((strategy, 2, "never") for strategy in [*EXCHANGING, "sharded", "layers"]),
        ("hybrid:stages=2", 4, "never_in_a_row"),
    ],
)
def test_a_layer_that_is_never_called_stays_unchanged_and_bytes_are_as_planned(
    strategy: str, ranks: int, kind: str, optimizer: str, tmp_path: Path, session_of: SessionOf
) -> None:
    alone, spread = tmp_path / "alone.safetensors", tmp_path / "spread.safetensors"
    train_on(Place(0, 1, HERE), _request(kind, strategy_of("single"), alone, optimizer), lambda _: None)
    chosen = strategy_of(strategy)
    request = _request(kind, chosen, spread, optimizer)
    session = session_of(ranks, chosen if chosen.servers else None)
    outcomes: list[Outcome] = session.run(train_task, request)
    expected, actual = _tensors(alone), _tensors(spread)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, rtol=0, atol=1e-5, msg=name)
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == sent.planned > 0


@pytest.mark.parametrize("strategy", ["mirrored", "ring"])
def test_a_frozen_layer_is_accepted(strategy: str, tmp_path: Path, session_of: SessionOf) -> None:
    alone, spread = tmp_path / "alone.safetensors", tmp_path / "spread.safetensors"
    train_on(Place(0, 1, HERE), _request("frozen", strategy_of("single"), alone), lambda _: None)
    session_of(2).run(train_task, _request("frozen", strategy_of(strategy), spread))
    for name, tensor in _tensors(alone).items():
        assert_close(_tensors(spread)[name], tensor, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        *((strategy, "at_first") for strategy in [*EXCHANGING, "parameter-server-async"]),
        ("mirrored", "later"),
        ("parameter-server-async", "later"),
        ("mirrored", "at_random"),
        ("parameter-server", "at_random"),
    ],
)
def test_a_layer_that_is_called_in_some_steps_only_is_refused(strategy: str, kind: str, session_of: SessionOf) -> None:
    """Refuse it, because one device would skip its update in some steps, but several devices would not."""
    chosen = strategy_of(strategy)
    session = session_of(2, chosen if chosen.servers else None)
    with pytest.raises(UserError, match=r"'middle\.(weight|bias)' gets a gradient from some samples only, but"):
        session.run(train_task, _request(kind, chosen))
