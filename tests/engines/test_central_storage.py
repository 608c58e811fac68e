"""Central storage: other strategies resume its checkpoints, its copies are counted, its limits are reported."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import scalewise
from scalewise.core.errors import UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.engines.central_storage import HostUpdate
from scalewise.launch.placement import Placement
from scalewise.models.parameters import flatten_parameters, trainable, views_of
from scalewise.runtime.optimizers import ELEMENTWISE, make_optimizer
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request
from scalewise.training.session_pool import open_session
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf
from tests.runtime.host_tasks import shared_maps

HERE = Place(0, 1, torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda"))
MOST_RANKS = 1 if DEVICE_KIND == "cuda" else 3


def request(strategy: str, kind: str = "float64", **more: object) -> Request:
    settings = Settings(**{"batch": 5, "epochs": None, "steps": 8, **more})  # type: ignore[arg-type]
    return Request(f"tests.tiny:{kind}", strategy_of(strategy), settings, DataRequest(samples=13))


def train(session_of: SessionOf, ranks: int, request: Request) -> Outcome:
    if ranks == 0:
        return train_on(HERE, request, lambda _: None)
    outcomes: list[Outcome] = session_of(min(ranks, MOST_RANKS)).run(train_task, request)
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
def test_any_strategy_resumes_a_checkpoint(
    first: tuple[str, int], then: tuple[str, int], optimizer: str, session_of: SessionOf, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    reference = train(session_of, 0, request("single", checkpoint=whole, optimizer=optimizer))
    train(session_of, first[1], request(first[0], checkpoint=parts, optimizer=optimizer, steps=4))
    resumed = train(session_of, then[1], request(then[0], checkpoint=parts, optimizer=optimizer, resume=True))
    assert (resumed.steps, resumed.accuracy) == (4, reference.accuracy)
    expected, actual = _without_generators(whole), _without_generators(parts)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_prefetching_does_not_change_the_copied_bytes(prefetch: int) -> None:
    outcome = train_on(HERE, request(f"central-storage:prefetch={prefetch}"), lambda _: None)
    assert outcome.copied
    assert outcome.footprint
    # 6x5+5 and 5x3+3 elements are fetched and pushed; backward reads only the second weight again.
    assert outcome.footprint.read_again == (False, True, False, False)
    assert outcome.copied.per_step == 8 * (53 + 15 + 53)


def test_weights_are_fetched_for_every_micro_batch_and_gradients_added() -> None:
    outcome = train_on(HERE, request("central-storage", accumulate=2), lambda _: None)
    assert outcome.copied
    once = 8 * (53 + 15 + 53)
    assert outcome.copied.per_step == pytest.approx(2 * once + 8 * 53)


def test_host_memory_is_freed_after_the_run() -> None:
    gc.disable()
    try:
        train_on(HERE, request("central-storage"), lambda _: None)
        assert shared_maps() == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"optimizer": "adafactor"},
            "slices of central storage split large tensors, but adafactor needs whole tensors",
        ),
        ({"execution": "graph"}, "--execution graph is not possible: central-storage updates on the host"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        train_on(HERE, request("central-storage", **options), lambda _: None)
    assert message in str(caught.value)


def test_several_hosts_are_refused() -> None:
    with pytest.raises(UserError, match=r"the memory of one host, but this run has 2 hosts; use --hosts 1, or"):
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
    with pytest.raises(UserError, match="this run has 2 hosts"):
        open_session(strategy_of("central-storage"), Placement(4, "cpu"))


def test_scalar_parameters_are_fetched_from_host_memory() -> None:
    losses = [
        scalewise.train("tests.training.models:scaled", strategy=strategy, device_kind="cpu", batch=4, steps=6).loss
        for strategy in ("single", "central-storage")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


RANKS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()


class Reference:
    """Reference: one optimizer on the sum of the gradients."""

    def __init__(self, name: str) -> None:
        self.model = model()
        self.parameters = trainable(self.model)
        self.optimizer = make_optimizer(name, self.parameters, 0.1)

    def step(self, gradients: torch.Tensor) -> None:
        for parameter, gradient in zip(self.parameters, views_of(gradients.sum(0), self.parameters), strict=True):
            parameter.grad = gradient
        self.optimizer.step()


class Sliced:
    """HostUpdate of one slice with all weights and the gradients of several ranks."""

    def __init__(self, name: str) -> None:
        self.model = model()
        self.parameters = trainable(self.model)
        self.weights = flatten_parameters(self.model)
        self.gradients = torch.zeros(RANKS, self.weights.numel(), dtype=torch.float64)
        make = partial(make_optimizer, name, learning_rate=0.1)
        self.update = HostUpdate(make, self.parameters, self.weights, self.gradients, 0, 1)
        self.optimizer = make_optimizer(name, self.parameters, 0.1)
        self.update.show_in(self.optimizer)

    def step(self, gradients: torch.Tensor) -> None:
        self.gradients.copy_(gradients)
        self.update.step()


def gradients_of(steps: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(RANKS, 23, dtype=torch.float64, generator=random) for _ in range(steps)]


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_weights_and_state_equal_the_reference(name: str) -> None:
    reference, sliced = Reference(name), Sliced(name)
    for gradients in gradients_of(4):
        reference.step(gradients)
        sliced.step(gradients)
    torch.testing.assert_close(sliced.parameters, reference.parameters, rtol=0, atol=1e-12)
    for parameter, expected in zip(sliced.parameters, reference.parameters, strict=True):
        state = sliced.optimizer.state[parameter]
        torch.testing.assert_close(state, dict(reference.optimizer.state[expected]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_a_loaded_state_is_continued(name: str) -> None:
    reference, sliced = Reference(name), Sliced(name)
    *before, after = gradients_of(3)
    for gradients in before:
        reference.step(gradients)
    for parameter, expected in zip(sliced.parameters, reference.parameters, strict=True):
        parameter.data.copy_(expected)
        sliced.optimizer.state[parameter] = {
            key: value.clone() for key, value in reference.optimizer.state[expected].items() if value is not None
        }
    sliced.update.take_from(sliced.optimizer)
    sliced.update.begin()
    reference.step(after)
    sliced.step(after)
    torch.testing.assert_close(sliced.parameters, reference.parameters, rtol=0, atol=1e-12)


def test_each_rank_updates_its_own_slice() -> None:
    weights = torch.zeros(7)
    gradients = torch.ones(RANKS, 7)
    make = partial(make_optimizer, "sgd", learning_rate=1.0)
    parameters = [nn.Parameter(weights)]
    snapshots = []
    for rank in range(RANKS):
        HostUpdate(make, parameters, weights, gradients, rank, RANKS).step()  # SGD has no state to share
        snapshots.append(weights.tolist())
    assert snapshots == [[-3.0] * 3 + [0.0] * 4, [-3.0] * 5 + [0.0] * 2, [-3.0] * 7]
