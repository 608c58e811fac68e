"""Planned memory is what is measured, for every strategy; and models larger than a device's memory train."""

from __future__ import annotations

import pytest

from scalewise.core.errors import RankFailed, RunFailed
from scalewise.core.training_options import Precision, Settings
from scalewise.data.dataset import DataRequest
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.training.memory_plan import MemoryRequest, planned_memory, planned_on
from scalewise.training.results import Request, memory_of
from scalewise.training.tasks import train_task
from scalewise.training.train import train
from tests.conftest import SessionOf
from tests.training.memory_task import serve_unlimited, train_limited

TRANSFORMER, UNET = "transformer:layers=2,width=128,context=64", "unet:size=32"
HEAVY = "transformer:layers=4,width=256,context=32"
"""Nearly all of it is weights."""
RECURRENT, RESIDUAL, NORMED = (
    f"tests/training/memory_models.py:{name}" for name in ("recurrent", "residual", "normed")
)
WITHIN = 0.15
"""On every rank."""
TRIES = 2
NOT_WATCHED = {"parameter-server-async"}
"""Strategies that are not tested here, because their workers run another training loop."""


@pytest.mark.parametrize(
    ("name", "workload", "devices"),
    [(name, TRANSFORMER, 2) for name in STRATEGIES if name not in NOT_WATCHED]
    + [(name, UNET, 2) for name in ("layers", "pipeline")]
    + [(name, "linear", 2) for name in ("layers", "central-storage", "hybrid")]
    + [("sharded", HEAVY, 2), ("sharded", HEAVY, 4)]
    + [(f"pipeline:schedule={kind}", UNET, 2) for kind in ("gpipe", "interleaved")]
    + [("pipeline:schedule=interleaved,microbatches=4", TRANSFORMER, 2), ("pipeline:checkpoint=true", UNET, 2)]
    + [("pipeline:schedule=gpipe,checkpoint=true", TRANSFORMER, 2), ("single", RECURRENT, 1)]
    + [(name, RESIDUAL, 2) for name in ("layers:cut=blocks.1", "pipeline", "pipeline:schedule=gpipe")]
    + [(name, NORMED, 2) for name in ("layers", "pipeline", "pipeline:cut=layers.1", "pipeline:cut=norms.1")],
)
def test_planned_memory_is_measured(name: str, workload: str, devices: int, session_of: SessionOf) -> None:
    check(name, workload, devices, session_of)


@pytest.mark.parametrize(
    ("name", "workload"),
    [("single", TRANSFORMER), ("single", UNET), ("mirrored", TRANSFORMER), ("pipeline", TRANSFORMER)],
)
def test_planned_memory_is_measured_in_bf16(name: str, workload: str, session_of: SessionOf) -> None:
    """Weights stay in float32, and their casts are there beside them. The plan does not have the kernels that oneDNN
    keeps for attention, 1.3 MB."""
    check(name, workload, 2, session_of, "bf16", batch=64)


def check(
    name: str, workload: str, devices: int, session_of: SessionOf, precision: Precision = "fp32", batch: int = 16
) -> None:
    strategy = strategy_of(name)
    settings = Settings(batch=batch, epochs=None, steps=8, precision=precision)
    request = Request(workload, strategy, settings, DataRequest(samples=2 * batch))
    session = session_of(1 if name == "single" else devices, strategy)
    memory = memory_of(request, session.placement, session.run(train_task, request))
    assert len(memory.planned_by_rank) == session.placement.devices
    measured = [nbytes or 0 for nbytes in memory.measured_by_rank]
    for _ in range(TRIES):
        if memory.planned_by_rank == pytest.approx(measured, rel=WITHIN):
            break
        # gloo's threads sometimes free a buffer late, which then counts twice on a rank; rarely on the same rank again
        again = memory_of(request, session.placement, session.run(train_task, request)).measured_by_rank
        measured = [min(first, second or 0) for first, second in zip(measured, again, strict=True)]
    assert memory.planned_by_rank == pytest.approx(measured, rel=WITHIN)


def test_memory_is_planned_without_running_anything() -> None:
    [root, other] = planned_memory("linear", "data-parallel", 2, 8, samples=16)
    weights = 4 * 12_102_220
    assert (root.weights, root.optimizer, other.optimizer) == (weights, 2 * weights, 0)


def test_planning_many_runs_gives_the_same_as_planning_one() -> None:
    requests = [MemoryRequest("linear", "single", 1, 8, 16), MemoryRequest("linear", "data-parallel", 2, 8, 16)]
    alone, both = planned_on("cpu", requests)
    assert both == planned_memory("linear", "data-parallel", 2, 8, samples=16)
    assert [memory.weights for memory in alone] == [4 * 12_102_220]


LARGE = "transformer:layers=8,width=256,context=32"
"""25.7 MB of weights."""
LIMIT_GB = 0.025


def request_of(strategy: str) -> Request:
    settings = Settings(batch=4, epochs=None, steps=3, optimizer="sgd", learning_rate=0.1)
    return Request(LARGE, strategy_of(strategy), settings, DataRequest(samples=8))


def test_a_transformer_larger_than_a_device_trains_in_parts_and_not_on_one(
    session_of: SessionOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    [alone] = session_of(1).run(train_task, request_of("single"))
    for strategy in ("pipeline", "sharded"):
        outcomes = session_of(4).run(train_limited, request_of(strategy), LIMIT_GB)
        assert outcomes[0].losses == pytest.approx(alone.losses, rel=1e-3)
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", str(LIMIT_GB))
    with pytest.raises(RunFailed, match=r"tensors kept on the device take 0\.025\d GB") as raised:
        train(LARGE, optimizer="sgd", device_kind="cpu", batch=4, steps=3, samples=8)
    sentence = str(raised.value)
    assert (
        "the model's weights do not fit; --strategy central-storage, pipeline or sharded trains models larger than the "
        "device (planned: central-storage "
    ) in sentence
    assert sentence.endswith("GB with --devices 4)")


@pytest.mark.slow
def test_asynchronous_workers_keep_to_the_memory_of_their_device() -> None:
    request, placement = request_of("parameter-server-async"), Placement(1, "cpu", servers=1)
    with ServedSession(placement, serve_unlimited, independent=True) as session:
        memory = memory_of(request, placement, session.run(train_limited, request, 8 * LIMIT_GB))
        assert memory.planned_by_rank == pytest.approx(memory.measured_by_rank, rel=WITHIN)
        with pytest.raises(RankFailed, match=r"tensors kept on the device take 0\.077\d* GB"):
            session.run(train_limited, request, LIMIT_GB)
