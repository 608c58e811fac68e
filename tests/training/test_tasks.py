"""Training with parameter servers in real processes: staleness, deaths, replacements, checkpoints."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import scalewise
from scalewise.core.errors import RankFailed, UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.training.asynchronous import staleness, updates
from scalewise.training.results import Outcome, Report, Request
from scalewise.training.session_pool import open_session
from scalewise.training.tasks import HostModel, train_task
from tests.conftest import SessionOf
from tests.training import tasks

TINY = "tests.tiny:float32"


def _request(strategy: str, steps: int, workload: str = TINY, **more: Any) -> Request:
    return Request(workload, strategy_of(strategy), Settings(4, None, steps, **more))


def _weights(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if not name.startswith("random/")}


@pytest.mark.parametrize("bound", [1, 2])
def test_staleness_stays_within_its_bound_and_every_batch_part_is_computed_once(
    bound: int, session_of: SessionOf
) -> None:
    request = _request(f"parameter-server-async:max_staleness={bound}", 30)
    session = session_of(4, request.strategy)
    assert isinstance(session, ServedSession)
    outcomes: list[Outcome] = session.run(train_task, request)
    assert 0 < staleness(session.served).max <= bound
    assert sorted(update.ticket for outcome in outcomes for update in outcome.updates) == list(range(30 * 4))
    counted = updates(session.served, outcomes, 4)
    assert counted.batches == 30
    assert counted.applied == counted.acknowledged == counted.seen_by_workers == 30 * 4


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_layer_that_is_never_called_keeps_its_weights(accumulate: int, session_of: SessionOf, tmp_path: Path) -> None:
    alone, served = tmp_path / "alone.safetensors", tmp_path / "served.safetensors"
    for strategy, path in (("single", alone), ("parameter-server:servers=2", served)):
        settings = Settings(4, 6, None, checkpoint=path, accumulate=accumulate)
        request = Request("tests.training.models:unused", strategy_of(strategy), settings)
        session = session_of(1 if strategy == "single" else 2, None if strategy == "single" else request.strategy)
        session.run(train_task, request)
    model = {name: tensor for name, tensor in _weights(alone).items() if name.startswith("model/")}
    assert len(model) == 6
    for name, tensor in model.items():
        torch.testing.assert_close(_weights(served)[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", ["parameter-server:servers=2", "parameter-server-async"])
def test_runs_leave_no_open_connections(strategy: str, session_of: SessionOf) -> None:
    request = _request(strategy, 5)
    session = session_of(2, request.strategy)
    first, *_, last = [session.run(tasks.connections_after_training, request) for _ in range(4)]
    assert last == first


@pytest.mark.slow
def test_a_worker_that_dies_is_dropped_and_the_others_finish(tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    result = scalewise.train(
        "tests.tiny_ranks:killed",
        strategy="parameter-server-async",
        devices=3,
        device_kind="cpu",
        batch=6,
        steps=40,
        checkpoint=path,
    )
    assert _steps_in(path) == 40
    assert result.updates is not None
    assert result.updates.applied == result.updates.acknowledged
    assert result.updates.by_worker[1] == 3  # the worker died in its fourth update
    assert result.updates.seen_by_workers == result.updates.applied - 3  # counted by the remaining workers
    assert result.updates.applied == 3 * 40 - 1  # only the part that the worker was computing is lost
    assert any("worker 1 was killed (signal 9); the other workers continued" in note for note in result.notes)
    assert result.updates.batches == 40
    pushed_and_pulled = 2 * 4 * result.parameters
    assert pushed_and_pulled < result.bytes_per_step.planned < 3 * pushed_and_pulled  # one update, with headers


@pytest.mark.slow
def test_a_run_whose_first_worker_died_reports_the_remaining_worker() -> None:
    result = scalewise.train(
        "tests.tiny_ranks:first_killed",
        strategy="parameter-server-async",
        devices=2,
        device_kind="cpu",
        batch=4,
        epochs=100,
        samples=16,
    )
    assert result.updates is not None
    assert result.memory is not None
    assert result.updates.by_worker[0] <= 3  # the worker died in its fourth update
    assert result.updates.by_worker[1] >= 4 * 100  # all of its own, and what the other left
    assert result.steps == result.updates.applied == 2 * 4 * 100 - 1
    assert result.epochs == len(result.epoch_seconds) == 100
    assert result.phases_rank == 1
    assert result.memory.planned
    # Memory is not measured on a CPU; the dead worker still has an entry.
    assert len(result.memory.measured_by_rank) == len(result.memory.planned_by_rank) == 2


@pytest.mark.parametrize("options", ["", ":max_staleness=1"])
@pytest.mark.slow
def test_an_asynchronous_worker_that_hangs_ends_the_run_and_is_named(options: str) -> None:
    """With a staleness bound the others wait for it and time out; without one they compute the remaining parts."""
    with pytest.raises(RankFailed, match=r"^worker 1 did not answer within 3 s$") as raised:
        scalewise.train(
            "tests.tiny_ranks:hangs",
            strategy=f"parameter-server-async{options}",
            devices=2,
            device_kind="cpu",
            batch=4,
            steps=10**5,
            timeout_seconds=3,  # long enough to connect on a busy machine
        )
    assert "tiny_ranks.py" in raised.value.details


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ("tests.tiny_ranks:raises", "worker 1 failed at .*tiny_ranks.py, line .*: ValueError: a bug in the loss"),
        ("tests.training.models:breaks_at_the_fifth", "the loss became nan at step .* of worker"),
    ],
)
def test_an_asynchronous_worker_that_raises_fails_the_run(workload: str, sentence: str, session_of: SessionOf) -> None:
    request = _request("parameter-server-async", 10**5, workload)
    with pytest.raises(RankFailed, match=sentence):
        session_of(2, request.strategy).run(train_task, request)


@pytest.mark.slow
def test_a_dead_worker_is_replaced() -> None:
    """The replacement has the same number, so it dies in its own fourth update, and is not replaced again."""
    result = scalewise.train(
        "tests.tiny_ranks:killed",
        strategy="parameter-server-async:replacements=1",
        devices=2,
        device_kind="cpu",
        batch=4,
        steps=2000,
    )
    assert result.updates is not None
    assert result.updates.by_worker[1] == 6
    assert result.updates.applied == result.updates.acknowledged == 2 * 2000 - 2
    died = "worker 1 was killed (signal 9)"
    assert result.notes[-2:] == [f"{died}; a replacement was started", f"{died}; the other workers continued"]


@pytest.mark.slow
def test_a_synchronous_worker_that_dies_ends_the_run() -> None:
    with pytest.raises(RankFailed, match=r"^rank 1 was killed \(signal 9\)$"):
        scalewise.train(
            "tests.tiny_ranks:killed", strategy="parameter-server", devices=2, device_kind="cpu", batch=4, steps=100
        )


@pytest.mark.parametrize("strategy", ["parameter-server:servers=2", "parameter-server-async:servers=2"])
@pytest.mark.slow
def test_a_killed_server_is_named_and_the_run_can_be_resumed(strategy: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    endless = _request(strategy, 10**6, checkpoint=path, checkpoint_every=5)
    with open_session(endless.strategy, Placement(2, "cpu")) as session:
        assert isinstance(session, ServedSession)

        killed: list[int] = []

        def kill_a_server(_rank: int, report: Report) -> None:
            if path.exists() and report.steps_done > 20 and not killed:  # workers still report for a while
                killed.append(session.pids[-1])
                os.kill(killed[0], signal.SIGKILL)

        with pytest.raises(RankFailed, match=r"^server 1 was killed \(signal 9\)$"):
            session.run(train_task, endless, on_report=kill_a_server)
    done = _steps_in(path)
    result = scalewise.train(
        TINY, strategy=strategy, devices=2, device_kind="cpu", batch=4, steps=done + 10, checkpoint=path, resume=True
    )
    assert done >= 5
    assert f"resumed at step {done}, now at {done + 10}" in result.notes
    assert sum(result.phases.values()) == pytest.approx(result.step_seconds.median)


def _steps_in(path: Path) -> int:
    with safe_open(path, framework="pt") as file:
        return int(json.loads(file.metadata()["progress"])["steps_done"])


def test_a_finished_asynchronous_run_is_known_to_be_finished(tmp_path: Path, session_of: SessionOf) -> None:
    """Servers combine pushes, so they count fewer versions than pushes; the last batch has 3 samples and 3 pushes."""
    path = tmp_path / "tiny.safetensors"
    strategy = strategy_of("parameter-server-async:max_staleness=1,servers=2")
    session = session_of(4, strategy)

    def request(steps: int, **more: Any) -> Request:
        return Request(TINY, strategy, Settings(5, None, steps, checkpoint=path, **more), DataRequest(samples=13))

    session.run(train_task, request(12))
    assert session.served[0].versions < 44  # fewer than the pushes, else this test proves nothing
    assert _steps_in(path) == 12
    session.run(train_task, request(14, resume=True))
    assert _steps_in(path) == 14


def test_a_checkpoint_that_is_due_between_two_versions_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    host_model = HostModel(_request("parameter-server-async", 100, checkpoint=Path("never"), checkpoint_every=5))
    saved: list[int] = []
    monkeypatch.setattr(host_model, "save", lambda _archive, _version, done: saved.append(done))
    for done in (3, 6, 6, 7, 8, 9, 11, 11, 13):
        host_model.save_if_due(None, 0, done)  # type: ignore[arg-type]
    assert saved == [6, 8, 11, 13]  # an epoch has 4 steps


@pytest.mark.parametrize(
    ("workload", "optimizer"),
    [
        *((TINY, optimizer) for optimizer in ("adam", "momentum", "sgd", "adagrad")),
        *((f"tests.training.models:{kind}", "adam") for kind in ("scaled", "dropout", "batch_norm")),
    ],
)
def test_a_run_resumed_on_servers_equals_one_that_never_stopped(
    workload: str, optimizer: str, tmp_path: Path, session_of: SessionOf
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    served, alone = "parameter-server:servers=2", "single"
    session = session_of(2, strategy_of(served))
    session.run(train_task, _request(served, 9, workload, checkpoint=whole, optimizer=optimizer))
    session.run(train_task, _request(served, 4, workload, checkpoint=parts, optimizer=optimizer))
    session.run(train_task, _request(served, 9, workload, checkpoint=parts, optimizer=optimizer, resume=True))
    for name, tensor in load_file(whole).items():
        torch.testing.assert_close(load_file(parts)[name], tensor, rtol=0, atol=1e-7)
    single = tmp_path / "single.safetensors"
    session_of(1).run(train_task, _request(alone, 9, workload, checkpoint=single, optimizer=optimizer))
    assert _weights(single).keys() == _weights(whole).keys()


def test_servers_save_the_running_statistics_of_worker_0(tmp_path: Path, session_of: SessionOf) -> None:
    """The checkpoint equals that of a mirrored run."""
    served, mirrored = tmp_path / "served.safetensors", tmp_path / "mirrored.safetensors"
    for strategy, path in (("parameter-server:servers=2", served), ("mirrored", mirrored)):
        request = _request(strategy, 6, "tests.training.models:batch_norm", checkpoint=path, checkpoint_every=5)
        session = session_of(2, request.strategy if path is served else None)
        session.run(train_task, request)
    saved = load_file(served)
    assert saved["model/1.num_batches_tracked"] == 6
    expected = load_file(mirrored)
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(saved[name], tensor, rtol=0, atol=1e-5, msg=name)


def test_asynchronous_checkpoints_hold_a_workers_running_statistics(tmp_path: Path, session_of: SessionOf) -> None:
    path = tmp_path / "tiny.safetensors"
    batches_tracked: list[float] = []
    for steps, resume in ((6, False), (12, True)):
        request = _request(
            "parameter-server-async", steps, "tests.training.models:batch_norm", checkpoint=path, resume=resume
        )
        session_of(2, request.strategy).run(train_task, request)
        batches_tracked.append(float(load_file(path)["model/1.num_batches_tracked"]))
    first, second = batches_tracked
    assert 1 <= first <= 12
    assert first < second <= 24


def test_an_asynchronous_run_starts_its_loaders_once(session_of: SessionOf) -> None:
    request = _request("parameter-server-async", 12, "tests.training.models:loaded_by", load="stream:workers=2")
    outcomes: list[Outcome] = session_of(2, request.strategy).run(train_task, request)
    assert sum(len(outcome.updates) for outcome in outcomes) == 24


def test_accuracy_is_computed_if_the_last_batch_has_fewer_samples_than_workers(session_of: SessionOf) -> None:
    settings = Settings(4, 2, None)
    request = Request(TINY, strategy_of("parameter-server-async"), settings, DataRequest(samples=5))
    outcomes: list[Outcome] = session_of(2, request.strategy).run(train_task, request)
    assert [outcome.accuracy is not None for outcome in outcomes].count(True) == 1


def test_servers_and_one_device_resume_each_others_checkpoints(tmp_path: Path, session_of: SessionOf) -> None:
    served = "parameter-server:servers=2"
    reference = tmp_path / "reference.safetensors"
    session_of(1).run(train_task, _request("single", 8, checkpoint=reference))
    for first, second in ((served, "single"), ("single", served)):
        path = tmp_path / f"{first.partition(':')[0]}.safetensors"
        for strategy, steps, resume in ((first, 3, False), (second, 8, True)):
            ranks = 1 if strategy == "single" else 2
            chosen = None if strategy == "single" else strategy_of(strategy)
            request = _request(strategy, steps, checkpoint=path, resume=resume)
            session_of(ranks, chosen).run(train_task, request)
        for name, tensor in _weights(reference).items():
            torch.testing.assert_close(_weights(path)[name], tensor, rtol=0, atol=1e-5)


def test_an_optimizer_that_looks_at_whole_tensors_is_refused() -> None:
    with pytest.raises(
        UserError, match="parameter servers split large tensors, but adafactor needs whole tensors; valid"
    ):
        scalewise.train(
            TINY, strategy="parameter-server", devices=2, device_kind="cpu", batch=4, steps=2, optimizer="adafactor"
        )
