"""Central storage beside the contract: its checkpoints are everyone's, its copies are counted, its limits are said."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import scalewise
from scalewise.data.data import DataRequest
from scalewise.engines.engine import Place
from scalewise.errors import UserError
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.verbs.opening import open_session
from tests.conftest import DEVICE_KIND, SessionOf
from tests.step.host_tasks import shared_maps

HERE = Place(0, 1, torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda"))
MOST_RANKS = 1 if DEVICE_KIND == "cuda" else 3


def request(strategy: str, kind: str = "float64", **more: object) -> Request:
    settings = Settings(**{"batch": 5, "epochs": None, "steps": 8, **more})  # type: ignore[arg-type]
    return Request(f"tests.tiny:{kind}", strategy_of(strategy), settings, DataRequest(samples=13))


def train(session_of: SessionOf, ranks: int, what: Request) -> Outcome:
    if ranks == 0:
        return train_on(HERE, what, lambda _: None)
    outcomes: list[Outcome] = session_of(min(ranks, MOST_RANKS)).run(train_task, what)
    return outcomes[0]


def _without_generators(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if not name.startswith("random/")}


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "sgd", "adagrad"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("central-storage", 2), ("single", 0)),
        (("single", 0), ("central-storage", 3)),
        (("mirrored", 2), ("central-storage", 1)),
        (("central-storage", 3), ("central-storage", 2)),
    ],
)
def test_a_run_is_gone_on_with_by_any_strategy(
    first: tuple[str, int], then: tuple[str, int], optimizer: str, session_of: SessionOf, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    reference = train(session_of, 0, request("single", checkpoint=whole, optimizer=optimizer))
    train(session_of, first[1], request(first[0], checkpoint=parts, optimizer=optimizer, steps=4))
    resumed = train(session_of, then[1], request(then[0], checkpoint=parts, optimizer=optimizer, resume=True))
    assert (resumed.steps, resumed.accuracy) == (4, reference.accuracy)
    expected, found = _without_generators(whole), _without_generators(parts)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_the_number_fetched_ahead_changes_no_byte(prefetch: int) -> None:
    outcome = train_on(HERE, request(f"central-storage:prefetch={prefetch}"), lambda _: None)
    assert outcome.copied
    assert outcome.footprint
    # 6x5+5 and 5x3+3 numbers forward and back; backward reads the second weight only.
    assert outcome.footprint.read_again == (False, True, False, False)
    assert outcome.copied.per_step == 8 * (53 + 15 + 53)


def test_every_part_of_a_batch_is_fetched_for_and_added() -> None:
    outcome = train_on(HERE, request("central-storage", accumulate=2), lambda _: None)
    assert outcome.copied
    once = 8 * (53 + 15 + 53)
    assert outcome.copied.per_step == pytest.approx(2 * once + 8 * 53)


def test_host_memory_is_freed_with_the_run() -> None:
    gc.disable()
    try:
        train_on(HERE, request("central-storage"), lambda _: None)
        assert shared_maps() == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"optimizer": "adafactor"}, "slices of central storage cut large tensors, and adafactor looks at whole ones"),
        ({"execution": "graph"}, "--execution graph is not possible: central-storage updates on the host"),
    ],
)
def test_what_it_cannot_do_is_said(more: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        train_on(HERE, request("central-storage", **more), lambda _: None)
    assert sentence in str(refused.value)


def test_several_hosts_are_refused() -> None:
    with pytest.raises(UserError, match=r"the memory of one machine, and these are 2 hosts; use --hosts 1, or"):
        open_session(strategy_of("central-storage"), Placement(2, "cpu", hosts=2, link="1gbit"))


def test_several_hosts_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {
        "RANK": 0,
        "WORLD_SIZE": 4,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_PORT": 1,
        "GROUP_WORLD_SIZE": 2,
    }
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match="these are 2 hosts"):
        open_session(strategy_of("central-storage"), Placement(4, "cpu"))


def test_a_parameter_that_is_a_single_number_is_lent_too() -> None:
    losses = [
        scalewise.train("tests.training.models:scaled", strategy=strategy, device_kind="cpu", batch=4, steps=6).loss
        for strategy in ("single", "central-storage")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
