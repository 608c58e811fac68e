"""Stages on different ranks: exact for all kinds of models and splits; complete checkpoints; refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scalewise.core.errors import UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Job, Place
from scalewise.engines.layers import build
from scalewise.engines.stages import StageEngine
from scalewise.models.footprint import footprint_of
from scalewise.runtime.clock import HostClock, Times
from scalewise.runtime.layer_memory import layers_of
from scalewise.strategies.rank_memory import TrainingRun
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.stage_plan import Kind, schedule_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request, bytes_per_step
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf
from tests.engines.tasks import computations_of, failure_of, samples_at_a_time, stage_ends, train_through_host

pytestmark = pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
HERE = torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda")


def request_for(kind: str, strategy: str, path: Path | None, steps: int = 4, batch: int = 5, **more: Any) -> Request:
    """Return a request with batches of 5, then one of 2."""
    settings = Settings(batch, None, steps, checkpoint=path, **more)
    return Request(f"tests.tiny_cut:{kind}", strategy_of(strategy), settings, DataRequest(samples=7))


def alone(kind: str, path: Path, steps: int = 4, **more: Any) -> Outcome:
    return train_on(Place(0, 1, HERE), request_for(kind, "single", path, steps, **more), lambda _: None)


def state(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if not name.startswith("random/")}


def assert_same_state(actual: Path, expected: Path) -> None:
    actual_state, expected_state = state(actual), state(expected)
    assert set(actual_state) == set(expected_state)
    for name, tensor in expected_state.items():
        # Adam amplifies rounding errors in zero gradients, and a GPU rounds differently.
        atol = 1e-10 if HERE.type == "cpu" else 1e-6
        torch.testing.assert_close(actual_state[name], tensor, rtol=0, atol=atol, msg=f"{name} differs")


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
    assert_same_state(tmp_path / "spread", tmp_path / "alone")
    assert outcomes[0].losses == pytest.approx(reference.losses, rel=1e-6)
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy is not None]
    assert accuracies == ([pytest.approx(reference.accuracy)] if reference.accuracy is not None else [])
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == pytest.approx(sent.planned, rel=0.01)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_activation_checkpointing_does_not_change_batch_norm_statistics(
    schedule: str, tmp_path: Path, session_of: SessionOf
) -> None:
    strategy = f"pipeline:schedule={schedule},microbatches=2"
    session_of(2).run(train_task, request_for("batch_norm", strategy, tmp_path / "kept"))
    session_of(2).run(train_task, request_for("batch_norm", f"{strategy},checkpoint", tmp_path / "again"))
    assert_same_state(tmp_path / "again", tmp_path / "kept")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_padded_micro_batches_do_not_change_batch_norm_statistics(
    schedule: str, tmp_path: Path, session_of: SessionOf
) -> None:
    """Train on a batch of four micro-batches, then on one of which only the first has samples."""
    ten = DataRequest(samples=10)
    for steps, parts in ((1, 4), (2, 1)):
        settings = {"accumulate": parts, "resume": steps > 1}
        request = request_for("batch_norm", "single", tmp_path / "alone", steps, batch=8, **settings)
        train_on(Place(0, 1, HERE), replace(request, data=ten), lambda _: None)
    strategy = f"pipeline:schedule={schedule},microbatches=4"
    request = request_for("batch_norm", strategy, tmp_path / "spread", steps=2, batch=8)
    session_of(2).run(train_task, replace(request, data=ten))
    assert_same_state(tmp_path / "spread", tmp_path / "alone")
    assert state(tmp_path / "spread")["model/1.num_batches_tracked"] == 4 + 1


@pytest.mark.parametrize("strategy", ["pipeline:microbatches=2", "pipeline:schedule=gpipe,checkpoint,microbatches=2"])
def test_padding_within_a_micro_batch_is_not_counted_by_batch_norm(
    strategy: str, tmp_path: Path, session_of: SessionOf
) -> None:
    """Train on a batch of five in micro-batches of three and two."""
    ten = DataRequest(samples=10)
    plain: dict[str, Any] = {"optimizer": "momentum"}  # Adam amplifies rounding errors in zero gradients
    request = request_for("batch_norm", "single", tmp_path / "alone", accumulate=2, **plain)
    train_on(Place(0, 1, HERE), replace(request, data=ten), lambda _: None)
    request = request_for("batch_norm", strategy, tmp_path / "spread", **plain)
    session_of(2).run(train_task, replace(request, data=ten))
    assert_same_state(tmp_path / "spread", tmp_path / "alone")


@pytest.mark.parametrize(("strategy", "batch"), [("pipeline", 8), ("pipeline:schedule=gpipe", 2), ("pipeline", 2)])
def test_batch_norm_gets_more_than_one_sample(strategy: str, batch: int, session_of: SessionOf) -> None:
    request = replace(request_for("batch_norm", strategy, None, batch=batch), data=DataRequest(samples=8))
    session = session_of(2)
    outcomes = session.run(train_task, request)
    assert all(torch.isfinite(torch.tensor(outcomes[0].losses)))
    sent = bytes_per_step(request, session.placement, outcomes)
    assert sent.traced == pytest.approx(sent.planned, rel=0.01)


def test_a_batch_is_padded_with_its_samples_in_turn() -> None:
    assert StageEngine.padded(torch.tensor([7, 8, 9]), 8).tolist() == [7, 8, 9, 7, 8, 9, 7, 8]
    assert StageEngine.padded(torch.tensor([7, 8]), 2).tolist() == [7, 8]


@pytest.mark.parametrize(("first", "then"), [("layers", "single"), ("single", "pipeline"), ("pipeline", "layers")])
def test_any_strategy_resumes_the_checkpoint_of_another(
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
    assert_same_state(tmp_path / "spread", tmp_path / "alone")


@pytest.mark.parametrize(("first", "then"), [(3, 1), (1, 2)])
def test_the_number_of_micro_batches_may_change_when_a_run_is_resumed(
    first: int, then: int, tmp_path: Path, session_of: SessionOf
) -> None:
    alone("small_unet", tmp_path / "alone", steps=4)
    alone("small_unet", tmp_path / "spread", steps=2, accumulate=first)
    strategy = "pipeline" if then == 1 else "layers"
    session_of(2).run(
        train_task, request_for("small_unet", strategy, tmp_path / "spread", accumulate=then, resume=True)
    )
    assert_same_state(tmp_path / "spread", tmp_path / "alone")


def test_gradient_accumulation_does_not_change_the_weights(tmp_path: Path, session_of: SessionOf) -> None:
    alone("small_unet", tmp_path / "alone")
    session_of(2).run(train_task, request_for("small_unet", "layers", tmp_path / "spread", accumulate=2))
    assert_same_state(tmp_path / "spread", tmp_path / "alone")


def test_batch_norm_in_an_exported_model_equals_single_device_training_and_evaluation(
    tmp_path: Path, session_of: SessionOf
) -> None:
    whole = DataRequest(samples=10)
    request = replace(request_for("norms", "single", tmp_path / "alone"), data=whole)
    reference = train_on(Place(0, 1, HERE), request, lambda _: None)
    request = replace(request_for("norms", "layers:balance=measured", tmp_path / "spread"), data=whole)
    outcomes = session_of(2).run(train_task, request)
    assert_same_state(tmp_path / "spread", tmp_path / "alone")
    assert outcomes[-1].accuracy == pytest.approx(reference.accuracy)


@pytest.mark.parametrize(("accumulate", "samples"), [(1, [5, 5]), (2, [3, 3]), (3, [2, 2])])
def test_a_model_is_exported_for_the_samples_of_a_micro_batch(
    accumulate: int, samples: list[int], tmp_path: Path, session_of: SessionOf
) -> None:
    request = request_for("skipping", "layers", tmp_path / "spread", accumulate=accumulate)
    assert session_of(2).run(samples_at_a_time, request) == samples
    alone("skipping", tmp_path / "alone")
    session_of(2).run(train_task, request)
    assert_same_state(tmp_path / "spread", tmp_path / "alone")


def test_stages_are_balanced_for_the_samples_of_a_micro_batch(session_of: SessionOf) -> None:
    request = request_for("keeping", "layers", None, batch=16, accumulate=8)
    workload = request.resolved()
    known = footprint_of(workload, workload.data(request.data))
    ends = {samples: [stage.stop for stage in request.strategy.ranges(known, 2, samples)] for samples in (2, 16)}  # type: ignore[attr-defined]
    assert session_of(2).run(stage_ends, request) == [ends[2]] * 2
    assert ends[2] != ends[16]
    layers = layers_of(workload, workload.data(request.data), 2, torch.device("cpu"))
    first = request.strategy.rank_memory(0, TrainingRun(2, 16, known, accumulate=8), layers)
    assert len(first.layers) == ends[2][0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_messages_through_host_memory_do_not_change_the_weights_and_reuse_buffers(
    schedule: str, tmp_path: Path, session_of: SessionOf
) -> None:
    alone("small_unet", tmp_path / "alone")
    request = request_for("small_unet", f"pipeline:schedule={schedule},microbatches=4", tmp_path / "spread")
    buffers = session_of(2).run(train_through_host, request)
    assert_same_state(tmp_path / "spread", tmp_path / "alone")
    # Every tensor between stages has a buffer on both sides, forward and backward, for every micro-batch.
    workload = request.resolved()
    footprint = footprint_of(workload, workload.data(request.data))
    ranges = request.strategy.filling(footprint, 2, 5).ranges  # type: ignore[attr-defined]
    ends = [footprint.sections[stage.stop - 1] for stage in ranges[:-1]]
    assert buffers == [4 * sum(len(end.passed_bytes) + len(end.returned_bytes) for end in ends)] * 2


@pytest.mark.parametrize(
    ("kind", "strategy", "ranks", "sentence"),
    [
        ("declared", "layers", 3, "3 stages are too many for this model: it can be split into 2 at most (body, head)"),
        ("tied", "layers", 3, "'0' and '2' share weights, which would be in different stages"),
        ("tied_unchained", "layers", 2, "'first' and 'second' share weights, which would be in different stages"),
        ("used_twice", "layers", 2, "uses 'embedding.weight' in 'embedding' and again in or after 'norm', which would"),
        ("only_held", "layers", 2, "it needs two layers that are called once per step each, 'held.0' is never called"),
        ("turned", "layers", 6, "6 stages are too many for this model: it can be split into 5 at most (0, 1, 2, 5, 6)"),
        ("turned", "layers", 6, "the model cannot be split after '2', which returns 5x2 for 2 samples"),
        ("turned", "layers:cut=3", 2, "the model cannot be split after '2', which returns 5x2 for 2 samples"),
        ("wrongly_declared", "layers", 2, "(body, head) do not compute what the model does (largest difference "),
        ("dropout_left_out", "layers", 2, "(body, head) do not compute what the model does in training mode (largest"),
        ("backwards", "layers", 2, "(head, body) fail, although the model does not: RuntimeError: mat1 and mat2"),
        ("skipping", "layers:cut=first", 2, "'first' is the first module of the model, which would leave the first"),
        ("small_unet", "layers:cut=1.pool+nope", 3, "unknown module to split at 'nope'"),
        ("undeclared", "layers", 2, "cannot be split into stages: torch.export stops at "),
        ("undeclared", "layers", 2, "write it as an nn.Sequential, or declare its stages with Workload(stages=...)"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_with_a_remedy(
    kind: str, strategy: str, ranks: int, sentence: str
) -> None:
    assert sentence in message_of(kind, strategy, ranks)


def test_a_message_about_the_number_of_stages_has_no_other_reasons() -> None:
    message = "cut=1 makes 2 stages, but the devices need 3; name 2 modules, or change --devices"
    assert message_of("turned", "layers:cut=1", 3) == message


def message_of(kind: str, strategy: str, ranks: int) -> str:
    request = request_for(kind, strategy, None)
    workload = request.resolved()
    place = Place(0, ranks, torch.device("cpu"))
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    with pytest.raises(UserError) as caught:
        build(request.strategy, job)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("strategy", ["pipeline", "hybrid:stages=2"])
def test_a_pipeline_refuses_accumulation_and_names_its_micro_batches(strategy: str, session_of: SessionOf) -> None:
    with pytest.raises(UserError, match=r"^--accumulate 2 is not possible, .*; use its option microbatches=2 instead$"):
        session_of(2).run(train_task, request_for("small_unet", strategy, None, accumulate=2))


@pytest.mark.parametrize(("kind", "count"), [("gpipe", 3), ("1f1b", 3), ("interleaved", 4)])
def test_torch_computes_in_the_planned_order(kind: Kind, count: int, session_of: SessionOf) -> None:
    request = request_for("small_unet", f"pipeline:schedule={kind},microbatches={count}", None)
    expected = [
        [f"{work.stage}{work.phase[0].upper()}{work.microbatch}" for work in works]
        for works in schedule_of(kind, 2, request.strategy.stages_each(2), count)  # type: ignore[attr-defined]
    ]
    assert session_of(2).run(computations_of, request) == expected


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_failing_stage_is_reported_and_torch_logs_no_schedule(schedule: str, session_of: SessionOf) -> None:
    request = request_for("batch_norm", f"pipeline:schedule={schedule},microbatches=1", None)
    settings = replace(request.settings, batch=1)
    [(sentence, logged)] = session_of(1).run(failure_of, replace(request, settings=settings))
    assert sentence == (
        "rank 0 failed: ValueError: Expected more than 1 value per channel when training, got input size "
        "torch.Size([1, 6])"
    )
    assert logged == []
