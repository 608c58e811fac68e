"""Stages on different ranks: exact for every kind of model, however it is cut; whole checkpoints; refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scalewise.data.data import DataRequest
from scalewise.engines.engine import Job, Place
from scalewise.engines.layers import build
from scalewise.engines.stages import HoldsStages
from scalewise.errors import UserError
from scalewise.prediction.held import Run
from scalewise.prediction.holdings import held_by
from scalewise.step.clock import HostClock, Times
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.schedules import Kind, schedule_of
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.verbs.outcomes import bytes_per_step
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.layer_memory import layers_of
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.tasks import cut_where, failure_of, samples_at_a_time, train_through_host, worked_on

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
HERE = torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda")


def request_for(kind: str, strategy: str, path: Path | None, steps: int = 4, batch: int = 5, **more: Any) -> Request:
    """Batches of 5, then one of 2."""
    settings = Settings(batch, None, steps, checkpoint=path, **more)
    return Request(f"tests.tiny_cut:{kind}", strategy_of(strategy), settings, DataRequest(samples=7))


def alone(kind: str, path: Path, steps: int = 4, **more: Any) -> Outcome:
    return train_on(Place(0, 1, HERE), request_for(kind, "single", path, steps, **more), lambda _: None)


def state(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if not name.startswith("random/")}


def assert_alike(found: Path, expected: Path) -> None:
    mine, theirs = state(found), state(expected)
    assert set(mine) == set(theirs)
    for name, tensor in theirs.items():
        # Where a gradient is nothing but rounding, Adam makes a step of it, and a GPU rounds otherwise.
        atol = 1e-10 if HERE.type == "cpu" else 1e-6
        torch.testing.assert_close(mine[name], tensor, rtol=0, atol=atol, msg=f"{name} differs")


@pytest.mark.parametrize(
    ("kind", "strategy", "ranks"),
    [
        ("small_unet", "layers", 2),
        ("small_unet", "layers", 4),
        ("small_unet", "pipeline", 3),
        ("small_unet", "pipeline:schedule=interleaved", 2),
        ("small_unet", "pipeline:schedule=gpipe,checkpoint", 2),
        ("small_transformer", "layers", 3),
        ("small_transformer", "pipeline:schedule=gpipe,microbatches=3", 2),
        ("small_transformer", "pipeline", 4),
        ("batch_norm_unet", "layers", 2),
        ("declared", "layers", 2),
        ("skipping", "layers", 2),
        ("skipping", "pipeline", 3),
        ("skipping", "pipeline:cut=layers.1", 2),
        ("small_unet", "layers:cut=1+4", 3),
        ("tied_unchained", "layers:cut=head", 2),
        ("dictionaries", "layers", 2),
        ("batch_norm_unet", "layers:balance=measured", 2),
        ("in_place", "layers:cut=1", 2),
        ("in_place", "pipeline:cut=1+3", 3),
        ("in_place", "pipeline:schedule=interleaved,cut=1+3+5", 2),
        ("in_place", "pipeline:schedule=gpipe,checkpoint,cut=3", 2),
        ("in_place", "tensor", 2),
        ("uncalled", "layers", 2),
        ("uncalled", "layers:cut=blocks.1.0", 2),
        ("turned", "layers", 3),
    ],
)
def test_weights_and_state_equal_single_device_training(
    kind: str, strategy: str, ranks: int, tmp_path: Path, session_of: SessionOf
) -> None:
    reference = alone(kind, tmp_path / "alone")
    request = request_for(kind, strategy, tmp_path / "spread")
    session = session_of(ranks)
    outcomes: list[Outcome] = session.run(train_task, request)
    assert_alike(tmp_path / "spread", tmp_path / "alone")
    assert outcomes[0].losses == pytest.approx(reference.losses, rel=1e-6)
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy is not None]
    assert accuracies == ([pytest.approx(reference.accuracy)] if reference.accuracy is not None else [])
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == pytest.approx(sent.planned, rel=0.01)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_computing_once_more_for_backward_leaves_batch_norms_statistics_alone(
    schedule: str, tmp_path: Path, session_of: SessionOf
) -> None:
    strategy = f"pipeline:schedule={schedule},microbatches=2"
    session_of(2).run(train_task, request_for("batch_norm", strategy, tmp_path / "kept"))
    session_of(2).run(train_task, request_for("batch_norm", f"{strategy},checkpoint", tmp_path / "again"))
    assert_alike(tmp_path / "again", tmp_path / "kept")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_samples_that_only_pad_leave_batch_norms_statistics_alone(
    schedule: str, tmp_path: Path, session_of: SessionOf
) -> None:
    """A batch of four micro-batches, then one of which only the first has samples."""
    ten = DataRequest(samples=10)
    for steps, parts in ((1, 4), (2, 1)):
        settings = {"accumulate": parts, "resume": steps > 1}
        request = request_for("batch_norm", "single", tmp_path / "alone", steps, batch=8, **settings)
        train_on(Place(0, 1, HERE), replace(request, data=ten), lambda _: None)
    strategy = f"pipeline:schedule={schedule},microbatches=4"
    request = request_for("batch_norm", strategy, tmp_path / "spread", steps=2, batch=8)
    session_of(2).run(train_task, replace(request, data=ten))
    assert_alike(tmp_path / "spread", tmp_path / "alone")
    assert state(tmp_path / "spread")["model/1.num_batches_tracked"] == 4 + 1


@pytest.mark.parametrize("strategy", ["pipeline:microbatches=2", "pipeline:schedule=gpipe,checkpoint,microbatches=2"])
def test_samples_that_fill_up_a_micro_batch_are_not_counted_by_batch_norm(
    strategy: str, tmp_path: Path, session_of: SessionOf
) -> None:
    """A batch of five in micro-batches of three and two."""
    ten = DataRequest(samples=10)
    plain: dict[str, Any] = {"optimizer": "momentum"}  # Adam makes much of the rounding in what is no gradient
    request = request_for("batch_norm", "single", tmp_path / "alone", accumulate=2, **plain)
    train_on(Place(0, 1, HERE), replace(request, data=ten), lambda _: None)
    request = request_for("batch_norm", strategy, tmp_path / "spread", **plain)
    session_of(2).run(train_task, replace(request, data=ten))
    assert_alike(tmp_path / "spread", tmp_path / "alone")


@pytest.mark.parametrize(("strategy", "batch"), [("pipeline", 8), ("pipeline:schedule=gpipe", 2), ("pipeline", 2)])
def test_batch_norm_is_given_more_than_one_sample(strategy: str, batch: int, session_of: SessionOf) -> None:
    request = replace(request_for("batch_norm", strategy, None, batch=batch), data=DataRequest(samples=8))
    session = session_of(2)
    outcomes = session.run(train_task, request)
    assert all(torch.isfinite(torch.tensor(outcomes[0].losses)))
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == pytest.approx(sent.planned, rel=0.01)


def test_a_batch_is_padded_with_all_of_its_samples_in_turn() -> None:
    assert HoldsStages.padded(torch.tensor([7, 8, 9]), 8).tolist() == [7, 8, 9, 7, 8, 9, 7, 8]
    assert HoldsStages.padded(torch.tensor([7, 8]), 2).tolist() == [7, 8]


@pytest.mark.parametrize(("first", "then"), [("layers", "single"), ("single", "pipeline"), ("pipeline", "layers")])
def test_a_checkpoint_of_one_strategy_goes_on_under_another(
    first: str, then: str, tmp_path: Path, session_of: SessionOf
) -> None:
    alone("small_unet", tmp_path / "alone", steps=5)
    for strategy, steps in ((first, 3), (then, 5)):
        resume = strategy is then
        if strategy == "single":
            alone("small_unet", tmp_path / "spread", steps, resume=resume)
        else:
            request = request_for("small_unet", strategy, tmp_path / "spread", steps, resume=resume)
            session_of(2).run(train_task, request)
    assert_alike(tmp_path / "spread", tmp_path / "alone")


@pytest.mark.parametrize(("first", "then"), [(3, 1), (1, 2)])
def test_a_batch_may_be_computed_in_other_parts_after_a_checkpoint(
    first: int, then: int, tmp_path: Path, session_of: SessionOf
) -> None:
    alone("small_unet", tmp_path / "alone", steps=4)
    alone("small_unet", tmp_path / "spread", steps=2, accumulate=first)
    strategy = "pipeline" if then == 1 else "layers"
    session_of(2).run(
        train_task, request_for("small_unet", strategy, tmp_path / "spread", accumulate=then, resume=True)
    )
    assert_alike(tmp_path / "spread", tmp_path / "alone")


def test_parts_of_a_batch_one_after_the_other_change_nothing(tmp_path: Path, session_of: SessionOf) -> None:
    alone("small_unet", tmp_path / "alone")
    session_of(2).run(train_task, request_for("small_unet", "layers", tmp_path / "spread", accumulate=2))
    assert_alike(tmp_path / "spread", tmp_path / "alone")


def test_batch_norm_in_an_exported_model_is_trained_and_evaluated_as_on_one_device(
    tmp_path: Path, session_of: SessionOf
) -> None:
    whole = DataRequest(samples=10)
    request = replace(request_for("norms", "single", tmp_path / "alone"), data=whole)
    reference = train_on(Place(0, 1, HERE), request, lambda _: None)
    request = replace(request_for("norms", "layers:balance=measured", tmp_path / "spread"), data=whole)
    outcomes = session_of(2).run(train_task, request)
    assert_alike(tmp_path / "spread", tmp_path / "alone")
    assert outcomes[-1].accuracy == pytest.approx(reference.accuracy)


@pytest.mark.parametrize(("accumulate", "samples"), [(1, [5, 5]), (2, [3, 3]), (3, [2, 2])])
def test_an_exported_model_is_exported_for_the_samples_of_a_part(
    accumulate: int, samples: list[int], tmp_path: Path, session_of: SessionOf
) -> None:
    request = request_for("skipping", "layers", tmp_path / "spread", accumulate=accumulate)
    assert session_of(2).run(samples_at_a_time, request) == samples
    alone("skipping", tmp_path / "alone")
    session_of(2).run(train_task, request)
    assert_alike(tmp_path / "spread", tmp_path / "alone")


def test_stages_are_cut_for_the_part_of_a_batch_that_is_at_work(session_of: SessionOf) -> None:
    request = request_for("keeping", "layers", None, batch=16, accumulate=8)
    workload = request.resolved()
    known = footprint_of(workload, workload.data(request.data))
    ends = {samples: [stage.stop for stage in request.strategy.ranges(known, 2, samples)] for samples in (2, 16)}  # type: ignore[attr-defined]
    assert session_of(2).run(cut_where, request) == [ends[2]] * 2
    assert ends[2] != ends[16]
    layers = layers_of(workload, workload.data(request.data), 2, torch.device("cpu"))
    first = held_by(request.strategy, 0, Run(2, 16, known, accumulate=8), layers)
    assert len(first.layers) == ends[2][0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_messages_through_the_host_change_nothing_and_their_buffers_are_kept(
    schedule: str, tmp_path: Path, session_of: SessionOf
) -> None:
    alone("small_unet", tmp_path / "alone")
    request = request_for("small_unet", f"pipeline:schedule={schedule},microbatches=4", tmp_path / "spread")
    buffers = session_of(2).run(train_through_host, request)
    assert_alike(tmp_path / "spread", tmp_path / "alone")
    # Every message has one on either side, of as many as cross a cut forward and backward, for each micro-batch.
    workload = request.resolved()
    footprint = footprint_of(workload, workload.data(request.data))
    ranges = request.strategy.filling(footprint, 2, 5).ranges  # type: ignore[attr-defined]
    ends = [footprint.sections[stage.stop - 1] for stage in ranges[:-1]]
    assert buffers == [4 * sum(len(end.passed_bytes) + len(end.returned_bytes) for end in ends)] * 2


@pytest.mark.parametrize(
    ("kind", "strategy", "ranks", "sentence"),
    [
        ("declared", "layers", 3, "3 stages are too many for this model: it can be cut into 2 at most (body, head)"),
        ("tied", "layers", 3, "'0' and '2' share weights, and a cut lies between them"),
        ("tied_unchained", "layers", 2, "'first' and 'second' share weights, and a cut lies between them"),
        ("used_twice", "layers", 2, "uses 'embedding.weight' in 'embedding' and once more in or behind 'norm', and a"),
        ("only_held", "layers", 2, "no two layers that are called, each once per step, 'held.0' never is, the model"),
        ("turned", "layers", 6, "6 stages are too many for this model: it can be cut into 5 at most (0, 1, 2, 5, 6)"),
        ("turned", "layers", 6, "the model cannot be cut after '2', which gives 5x2 for 2 samples"),
        ("turned", "layers:cut=3", 2, "the model cannot be cut after '2', which gives 5x2 for 2 samples"),
        ("wrongly_declared", "layers", 2, "(body, head) do not compute what the model does (largest difference "),
        ("dropout_left_out", "layers", 2, "(body, head) while it trains do not compute what the model does (largest"),
        ("backwards", "layers", 2, "(head, body) fail where the model does not: RuntimeError: mat1 and mat2 shapes"),
        ("skipping", "layers:cut=first", 2, "'first' begins the model: a cut before it leaves the first stage empty"),
        ("small_unet", "layers:cut=1.pool+nope", 3, "unknown module to cut at 'nope'"),
        ("undeclared", "layers", 2, "cannot be cut into stages: torch.export stops at "),
        ("undeclared", "layers", 2, "write it as an nn.Sequential, or say its stages with Workload(stages=...)"),
    ],
)
def test_a_model_that_cannot_be_cut_is_answered_with_where_and_what_to_do(
    kind: str, strategy: str, ranks: int, sentence: str
) -> None:
    assert sentence in answer_to(kind, strategy, ranks)


def test_an_answer_tells_nothing_of_places_that_it_is_not_about() -> None:
    told = "cut=1 makes 2 stages, and these devices need 3; name 2 places, or use other --devices"
    assert answer_to("turned", "layers:cut=1", 3) == told


def answer_to(kind: str, strategy: str, ranks: int) -> str:
    request = request_for(kind, strategy, None)
    workload = request.resolved()
    place = Place(0, ranks, torch.device("cpu"))
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    with pytest.raises(UserError) as answer:
        build(request.strategy, job)  # type: ignore[arg-type]
    return str(answer.value)


@pytest.mark.parametrize("strategy", ["pipeline", "hybrid:stages=2"])
def test_parts_of_a_batch_are_asked_for_as_micro_batches(strategy: str, session_of: SessionOf) -> None:
    with pytest.raises(UserError, match=r"parts already: use its option microbatches=2 in place of --accumulate 2$"):
        session_of(2).run(train_task, request_for("small_unet", strategy, None, accumulate=2))


@pytest.mark.parametrize(("kind", "count"), [("gpipe", 3), ("1f1b", 3), ("interleaved", 4)])
def test_torch_works_in_the_planned_order(kind: Kind, count: int, session_of: SessionOf) -> None:
    request = request_for("small_unet", f"pipeline:schedule={kind},microbatches={count}", None)
    expected = [
        [f"{work.stage}{work.phase[0].upper()}{work.microbatch}" for work in works]
        for works in schedule_of(kind, 2, request.strategy.stages_each(2), count)  # type: ignore[attr-defined]
    ]
    assert session_of(2).run(worked_on, request) == expected


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_stage_that_fails_says_of_what_and_torch_logs_no_schedule(schedule: str, session_of: SessionOf) -> None:
    request = request_for("batch_norm", f"pipeline:schedule={schedule},microbatches=1", None)
    settings = replace(request.settings, batch=1)
    [(sentence, logged)] = session_of(1).run(failure_of, replace(request, settings=settings))
    assert sentence == (
        "rank 0 failed: ValueError: Expected more than 1 value per channel when training, got input size "
        "torch.Size([1, 6])"
    )
    assert logged == []
