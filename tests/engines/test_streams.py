"""Random numbers on several ranks: independent where what they act on is, and the same in a run that was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scalewise.data.data import DataRequest
from scalewise.engines.engine import Place
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.task import train_task
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.tasks import failure_of, kept_and_learnt, train_and_note_masks

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
    """Batches of 5, then one of 2; what is in the checkpoint."""
    settings = Settings(5, None, steps, checkpoint=path, resume=resume)
    chosen = strategy_of(strategy)
    request = Request(f"tests.tiny_dropout:{kind}", chosen, settings, DataRequest(samples=7))
    if ranks:
        sessions(ranks, chosen).run(train_task, request)
    else:
        train_on(Place(0, 1, HERE), request, lambda _: None)
    return load_file(path)


def differing(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


@pytest.mark.parametrize("strategy", ["layers:cut=2", "pipeline:cut=2,microbatches=2"])
def test_stages_drop_independently(strategy: str, tmp_path: Path, session_of: SessionOf) -> None:
    found = train(strategy, 2, tmp_path / "c", 1, session_of)
    first, second = found["model/1.mask"], found["model/3.mask"]
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
def test_a_run_with_dropout_that_was_stopped_goes_on_to_the_very_bytes_of_one_that_was_not(
    strategy: str, ranks: int, kind: str, tmp_path: Path, session_of: SessionOf
) -> None:
    whole = train(strategy, ranks, tmp_path / "whole", 6, session_of, kind)
    train(strategy, ranks, tmp_path / "parts", 3, session_of, kind)
    parts = train(strategy, ranks, tmp_path / "parts", 6, session_of, kind, resume=True)
    assert differing(parts, whole) == []
    states = [name for name in whole if name.startswith("random/") and name.endswith("cpu")]
    assert len(states) == ranks


@pytest.mark.parametrize(("strategy", "ranks"), [("layers", 2), ("pipeline", 2), ("single", 0)])
def test_a_run_with_dropout_goes_on_with_another_number_of_stages_and_every_time_alike(
    strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf
) -> None:
    train("layers", 3, tmp_path / "first", 2, session_of)
    for again in ("second", "third"):
        (tmp_path / again).write_bytes((tmp_path / "first").read_bytes())
        train(strategy, ranks, tmp_path / again, 4, session_of, resume=True)
    assert differing(load_file(tmp_path / "second"), load_file(tmp_path / "third")) == []


def served_masks(strategy: str, sessions: SessionOf, steps: int = 6) -> list[tuple[Outcome, list[list[float]]]]:
    chosen = strategy_of(strategy)
    request = Request("tests.tiny_dropout:remembered", chosen, Settings(4, None, steps), DataRequest(samples=12))
    found: list[tuple[Outcome, list[list[float]]]] = sessions(2, chosen).run(train_and_note_masks, request)
    return found


def test_workers_of_servers_drop_each_for_itself(session_of: SessionOf) -> None:
    [(_, first), (_, second)] = served_masks("parameter-server", session_of)
    assert len({tuple(mask) for mask in first + second}) == 6 + 6


def test_every_part_of_asynchronous_work_drops_its_own_whichever_worker_does_it(session_of: SessionOf) -> None:
    def by_ticket(steps: int) -> dict[int, list[float]]:
        found = served_masks("parameter-server-async", session_of, steps)
        done = [zip(outcome.updates, masks, strict=True) for outcome, masks in found]
        return {update.ticket: mask for each in done for update, mask in each}

    first, again = by_ticket(6), by_ticket(9)
    assert len({tuple(mask) for mask in first.values()}) == 2 * 6
    assert first.items() <= again.items()


def cut_request(kind: str) -> Request:
    settings = Settings(4, None, 3)
    return Request(f"tests.tiny_dropout:{kind}", strategy_of(CUT), settings, DataRequest(samples=12))


@pytest.mark.parametrize("kind", ["even", "uneven"])
def test_parts_of_a_cut_model_drop_alike_what_all_have_and_each_for_itself_what_it_has_alone(
    kind: str, session_of: SessionOf
) -> None:
    (kept, weights), (others, their_weights) = session_of(2).run(kept_and_learnt, cut_request(kind))
    assert kept["before"] == others["before"]
    assert kept["behind"] == others["behind"]
    inside = [torch.tensor(each["between"])[:, :40] for each in (kept, others)]
    assert not torch.equal(*inside)
    assert 0.3 < float((inside[0] == inside[1]).double().mean()) < 0.7
    for name in ("enter.weight", "head.weight", "head.bias"):
        assert weights[name] == their_weights[name]


def test_what_is_computed_once_more_for_backward_drops_what_it_did_before(session_of: SessionOf) -> None:
    assert session_of(2).run(kept_and_learnt, cut_request("uneven_again")) == session_of(2).run(
        kept_and_learnt, cut_request("uneven")
    )


def test_random_numbers_that_a_part_cannot_draw_rightly_are_refused(session_of: SessionOf) -> None:
    for sentence, _ in session_of(2).run(failure_of, cut_request("whole_samples")):
        assert "between layers in columns and rows the model draws random numbers of shape (2, 1) that" in sentence
