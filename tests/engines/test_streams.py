"""Random numbers on several ranks are independent for independent data, and equal in a run that was resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.tasks import failure_of, masks_and_weights, train_and_record_masks

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs several devices")
CUT = "tensor:columns=up,rows=down"
HERE = torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda")


def train(
    strategy: str,
    ranks: int,
    path: Path,
    steps: int,
    sessions: SessionOf,
    kind: str = "remembered",
    resume: bool = False,
) -> dict[str, torch.Tensor]:
    """Train on batches of 5, then one of 2; return the tensors of the checkpoint."""
    settings = Settings(5, None, steps, checkpoint=path, resume=resume)
    chosen = strategy_of(strategy)
    request = Request(f"tests.tiny_dropout:{kind}", chosen, settings, DataRequest(samples=7))
    if ranks:
        sessions(ranks, chosen).run(train_task, request)
    else:
        train_on(Place(0, 1, HERE), request, lambda _: None)
    return load_file(path)


def differing(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    assert actual.keys() == expected.keys()
    return [name for name, tensor in expected.items() if not torch.equal(actual[name], tensor)]


@pytest.mark.parametrize("strategy", ["layers:cut=2", "pipeline:cut=2,microbatches=2"])
def test_stages_draw_dropout_independently(strategy: str, tmp_path: Path, session_of: SessionOf) -> None:
    tensors = train(strategy, 2, tmp_path / "c", 1, session_of)
    first, second = tensors["model/1.mask"], tensors["model/3.mask"]
    assert set(first.tolist()) == set(second.tolist()) == {0.0, 2.0}
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("strategy", "ranks", "kind"),
    [
        ("layers", 2, "remembered"),
        ("pipeline", 3, "remembered"),
        ("pipeline:schedule=interleaved,checkpoint", 2, "remembered"),
        ("hybrid:stages=2", 4, "remembered"),
        ("mirrored", 2, "remembered"),
        ("sharded", 2, "remembered"),
        ("parameter-server:servers=2", 2, "remembered"),
        (CUT, 2, "uneven"),
        ("hybrid:tensor=2", 4, "paired"),
    ],
)
def test_a_resumed_run_with_dropout_equals_an_uninterrupted_run_bit_by_bit(
    strategy: str, ranks: int, kind: str, tmp_path: Path, session_of: SessionOf
) -> None:
    whole = train(strategy, ranks, tmp_path / "whole", 6, session_of, kind)
    train(strategy, ranks, tmp_path / "parts", 3, session_of, kind)
    parts = train(strategy, ranks, tmp_path / "parts", 6, session_of, kind, resume=True)
    assert differing(parts, whole) == []
    states = [name for name in whole if name.startswith("random/") and name.endswith("cpu")]
    assert len(states) == ranks


@pytest.mark.parametrize(("strategy", "ranks"), [("layers", 2), ("pipeline", 2), ("single", 0)])
def test_resuming_with_another_number_of_stages_is_deterministic(
    strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf
) -> None:
    train("layers", 3, tmp_path / "first", 2, session_of)
    for again in ("second", "third"):
        (tmp_path / again).write_bytes((tmp_path / "first").read_bytes())
        train(strategy, ranks, tmp_path / again, 4, session_of, resume=True)
    assert differing(load_file(tmp_path / "second"), load_file(tmp_path / "third")) == []


def masks_of_workers(strategy: str, sessions: SessionOf, steps: int = 6) -> list[tuple[Outcome, list[list[float]]]]:
    chosen = strategy_of(strategy)
    request = Request("tests.tiny_dropout:remembered", chosen, Settings(4, None, steps), DataRequest(samples=12))
    outcomes: list[tuple[Outcome, list[list[float]]]] = sessions(2, chosen).run(train_and_record_masks, request)
    return outcomes


def test_workers_of_parameter_servers_draw_dropout_independently(session_of: SessionOf) -> None:
    [(_, first), (_, second)] = masks_of_workers("parameter-server", session_of)
    assert len({tuple(mask) for mask in first + second}) == 6 + 6


def test_asynchronous_dropout_depends_on_the_ticket_and_not_on_the_worker(session_of: SessionOf) -> None:
    def by_ticket(steps: int) -> dict[int, list[float]]:
        outcomes = masks_of_workers("parameter-server-async", session_of, steps)
        updates = [zip(outcome.updates, masks, strict=True) for outcome, masks in outcomes]
        return {update.ticket: mask for updates_of_worker in updates for update, mask in updates_of_worker}

    first, again = by_ticket(6), by_ticket(9)
    assert len({tuple(mask) for mask in first.values()}) == 2 * 6
    assert first.items() <= again.items()


def tensor_request(kind: str) -> Request:
    settings = Settings(4, None, 3)
    return Request(f"tests.tiny_dropout:{kind}", strategy_of(CUT), settings, DataRequest(samples=12))


@pytest.mark.parametrize("kind", ["even", "uneven"])
def test_parts_of_a_split_model_share_dropout_of_whole_tensors_and_draw_their_own_for_parts(
    kind: str, session_of: SessionOf
) -> None:
    (masks, weights), (other_masks, other_weights) = session_of(2).run(masks_and_weights, tensor_request(kind))
    assert masks["before"] == other_masks["before"]
    assert masks["behind"] == other_masks["behind"]
    inside = [torch.tensor(part["between"])[:, :40] for part in (masks, other_masks)]
    assert not torch.equal(*inside)
    assert 0.3 < float((inside[0] == inside[1]).double().mean()) < 0.7
    for name in ("enter.weight", "head.weight", "head.bias"):
        assert weights[name] == other_weights[name]


def test_activation_checkpointing_draws_the_same_dropout_again(session_of: SessionOf) -> None:
    assert session_of(2).run(masks_and_weights, tensor_request("uneven_again")) == session_of(2).run(
        masks_and_weights, tensor_request("uneven")
    )


def test_random_numbers_that_no_part_can_draw_correctly_are_refused(session_of: SessionOf) -> None:
    for sentence, _ in session_of(2).run(failure_of, tensor_request("whole_samples")):
        assert "between layers in columns= and rows= the model draws random numbers of shape (2, 1)" in sentence
