"""Plans of stages: bytes sent between them, and dependencies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.core.errors import UserError
from scalewise.strategies.microbatches import choices_for, given_microbatches, without_costs
from scalewise.strategies.plan import Footprint, Section
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.stage_plan import Kind, most_under_way, schedule_of


def table(kind: Kind, devices: int, stages_each: int, microbatches: int) -> list[str]:
    """Schedule of every device as text: '0F1' is stage 0, forward, micro-batch 1."""
    return [
        " ".join(f"{work.stage}{work.phase[0].upper()}{work.microbatch}" for work in works)
        for works in schedule_of(kind, devices, stages_each, microbatches)
    ]


def test_gpipe_runs_all_forward_then_all_backward() -> None:
    assert table("gpipe", 2, 1, 3) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]


def test_1f1b_runs_backward_as_early_as_possible() -> None:
    assert table("1f1b", 2, 1, 4) == [
        "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
    ]


def test_interleaved_alternates_between_two_stages_in_rounds() -> None:
    assert table("interleaved", 2, 2, 2) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def test_most_micro_batches_in_flight() -> None:
    assert most_under_way(schedule_of("gpipe", 2, 1, 3), 2) == [3, 3]
    assert most_under_way(schedule_of("1f1b", 3, 1, 6), 3) == [3, 2, 1]
    assert most_under_way(schedule_of("interleaved", 2, 2, 4), 4) == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("batch", "devices", "kind", "expected"),
    [
        (32, 2, "1f1b", [2, 3, 4, 5, 8, 11, 16]),
        (12, 2, "1f1b", [2, 3, 4, 6, 7, 12]),
        (100, 4, "1f1b", [4, 5, 6, 10, 13, 20, 25]),
        (2, 4, "1f1b", [4]),
        (2, 4, "gpipe", [2]),
        (1, 1, "1f1b", [1]),
        (5, 2, "interleaved", [2, 3, 4]),
        (1, 2, "interleaved", [1]),
    ],
)
def test_candidate_numbers_of_micro_batches(batch: int, devices: int, kind: Kind, expected: list[int]) -> None:
    assert [split.number for split in choices_for(batch, devices, kind)] == expected


@pytest.mark.parametrize(
    ("batch", "devices", "kind", "expected"),
    [
        (32, 2, "1f1b", 8),
        (13, 2, "1f1b", 7),
        (100, 4, "1f1b", 10),
        (2, 4, "gpipe", 2),
        (32, 4, "interleaved", 16),
    ],
)
def test_without_costs_many_micro_batches_with_little_padding_are_chosen(
    batch: int, devices: int, kind: Kind, expected: int
) -> None:
    assert without_costs(batch, devices, kind).number == expected


def test_a_batch_that_does_not_divide_is_padded() -> None:
    assert given_microbatches(7, 13, 2, "1f1b") == (7, 2)
    assert given_microbatches(4, 12, 2, "1f1b") == (4, 3)


@pytest.mark.parametrize(
    ("batch", "devices", "kind", "expected"),
    [
        (32, 2, "1f1b", (8, 4)),
        (8, 2, "1f1b", (4, 2)),
        (13, 2, "1f1b", (7, 2)),
        (4, 4, "1f1b", (4, 2)),  # 1f1b needs four micro-batches; two of them are padding
        (4, 4, "gpipe", (2, 2)),
        (5, 2, "interleaved", (3, 2)),
        (1, 2, "gpipe", (1, 1)),
    ],
)
def test_batch_norm_gets_micro_batches_of_two_samples(
    batch: int, devices: int, kind: Kind, expected: tuple[int, int]
) -> None:
    assert without_costs(batch, devices, kind, norms_batches=True) == expected


@pytest.mark.parametrize(
    ("given", "batch", "devices", "kind", "message"),
    [
        (9, 8, 2, "1f1b", "microbatches=9 is more than the batch of 8"),
        (2, 8, 4, "1f1b", "microbatches=2 is too few for 4 devices"),
        (5, 8, 2, "interleaved", "microbatches=5 leaves 1 over"),
    ],
)
def test_numbers_of_micro_batches_that_a_schedule_cannot_run_are_refused(
    given: int, batch: int, devices: int, kind: Kind, message: str
) -> None:
    with pytest.raises(UserError) as error:
        given_microbatches(given, batch, devices, kind)
    assert message in str(error.value)


SKIP = Footprint(
    parameter_bytes=(400, 400, 400),
    input_bytes=8,
    target_bytes=8,
    output_bytes=4,
    sections=(
        Section("down", 100, 400, 0, (1000, 64), (1000, 64)),
        Section("bottom", 100, 400, 0, (500, 64), (500, 64)),
        Section("up", 100, 400, 0, (4,), (4,)),
    ),
)
NOTICE, HEADERS = 1, 144


def test_a_skip_connection_is_sent_through_every_stage_that_it_crosses() -> None:
    plan = strategy_of("layers").plan(SKIP, 3, 10)
    payload = 2 * 10 * (1000 + 64 + 500 + 64)
    messages = 2 * 2 * 3
    assert plan.bytes_per_step == payload + 4 * NOTICE + messages * HEADERS


def test_layers_computes_on_one_device_after_the_other() -> None:
    plan = strategy_of("layers").plan(SKIP, 3, 10)
    computed = [(step.phase, step.rank, step.samples) for step in plan.operations if not step.send]
    assert computed == [
        ("load", 0, 10),
        ("load", 2, 10),
        ("forward", 0, 10),
        ("forward", 1, 10),
        ("forward", 2, 10),
        ("loss", 2, 10),
        ("backward", 2, 10),
        ("backward", 1, 10),
        ("backward", 0, 10),
        ("update", 0, 10),
        ("update", 1, 10),
        ("update", 2, 10),
    ]
    assert [step.share for step in plan.operations if step.phase == "forward"] == pytest.approx([1 / 3] * 3)


def idle_part(strategy: str, devices: int, batch: int, backward: float = 2.0) -> float:
    """Idle fraction of a plan whose transfers take no time."""
    footprint = replace(SKIP, sections=tuple(Section(f"{at}", 100, 400, 0, (10,), (10,)) for at in range(4 * devices)))
    ends: list[float] = []
    free: dict[int, float] = {}
    busy = 0.0
    seconds = {"forward": 1.0, "backward": backward}
    for step in strategy_of(strategy).plan(footprint, devices, batch).operations:
        ready = max((ends[before] for before in step.after), default=0.0)
        if step.send:
            ends.append(ready)
            continue
        length = seconds.get(step.phase, 0.0) * step.share * step.samples
        ends.append(max(ready, free.get(step.rank, 0.0)) + length)
        free[step.rank] = ends[-1]
        busy += length
    return 1 - busy / (devices * max(ends))


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_layers_keeps_all_but_one_device_idle(devices: int) -> None:
    assert idle_part("layers", devices, 24) == pytest.approx((devices - 1) / devices)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [4, 8, 24])
def test_idle_time_of_a_pipeline_by_formula(schedule: str, devices: int, microbatches: int) -> None:
    strategy = f"pipeline:schedule={schedule},microbatches={microbatches}"
    expected = (devices - 1) / (microbatches + devices - 1)
    assert idle_part(strategy, devices, 24) == pytest.approx(expected)


def test_interleaving_halves_the_idle_time() -> None:
    assert idle_part("pipeline:schedule=interleaved,microbatches=8", 2, 24) == pytest.approx(0.5 / 8.5)


@pytest.mark.parametrize(("schedule", "due"), [("gpipe", True), ("1f1b", True), ("interleaved", False)])
def test_messages_wait_for_the_receiver_except_when_interleaved(schedule: str, due: bool) -> None:
    """Schedules of torch 2.11 to 2.13 post a receive when the stage needs it, except the interleaved one."""
    footprint = replace(SKIP, sections=tuple(Section(f"{at}", 100, 400, 0, (10,), (10,)) for at in range(8)))
    operations = strategy_of(f"pipeline:schedule={schedule},microbatches=4").plan(footprint, 2, 8).operations
    for step in operations:
        if step.send:
            assert (step.send.target in {operations[before].rank for before in step.after}) is due


def test_in_1f1b_a_sender_waits_for_the_receiver() -> None:
    footprint = replace(SKIP, sections=tuple(Section(f"{at}", 100, 400, 0, (10,), (10,)) for at in range(8)))
    waited = {}
    for schedule in ("gpipe", "1f1b"):
        operations = strategy_of(f"pipeline:schedule={schedule},microbatches=4").plan(footprint, 2, 8).operations
        sent = {at for at, step in enumerate(operations) if step.send and step.send.source == 0}
        waited[schedule] = any(sent & set(step.after) for step in operations if step.rank == 0 and not step.send)
    assert waited == {"gpipe": False, "1f1b": True}


def test_recomputed_forward_passes_are_planned() -> None:
    plan = strategy_of("pipeline:checkpoint,microbatches=3").plan(SKIP, 3, 9)
    phases = [step.phase for step in plan.operations]
    assert (phases.count("forward"), phases.count("backward")) == (18, 9)


def test_padding_samples_are_sent() -> None:
    whole = strategy_of("pipeline:microbatches=3").plan(SKIP, 3, 9)
    padded = strategy_of("pipeline:microbatches=3").plan(SKIP, 3, 7)
    assert padded.bytes_per_step == whole.bytes_per_step
