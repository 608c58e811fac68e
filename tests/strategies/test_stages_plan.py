"""Plans of models in stages: what crosses every cut, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.plan import Footprint, Section
from scalewise.strategies.registry import strategy_of

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


def test_a_skip_is_sent_at_every_hop_that_it_crosses() -> None:
    plan = strategy_of("layers").plan(SKIP, 3, 10)
    payload = 2 * 10 * (1000 + 64 + 500 + 64)
    messages = 2 * 2 * 3
    assert plan.bytes_per_step == payload + 4 * NOTICE + messages * HEADERS


def test_layers_works_on_one_device_after_the_other() -> None:
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
    """Of a plan whose transfers take no time."""
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
def test_layers_idles_all_but_one_device(devices: int) -> None:
    assert idle_part("layers", devices, 24) == pytest.approx((devices - 1) / devices)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [4, 8, 24])
def test_micro_batches_fill_the_pipeline(schedule: str, devices: int, microbatches: int) -> None:
    strategy = f"pipeline:schedule={schedule},microbatches={microbatches}"
    expected = (devices - 1) / (microbatches + devices - 1)
    assert idle_part(strategy, devices, 24) == pytest.approx(expected)


def test_interleaving_halves_the_idle_time() -> None:
    assert idle_part("pipeline:schedule=interleaved,microbatches=8", 2, 24) == pytest.approx(0.5 / 8.5)


@pytest.mark.parametrize(("schedule", "due"), [("gpipe", True), ("1f1b", True), ("interleaved", False)])
def test_torch_receives_when_a_stage_comes_to_it(schedule: str, due: bool) -> None:
    """And so nothing is sent before, as the schedules of torch 2.11 to 2.13 have it."""
    footprint = replace(SKIP, sections=tuple(Section(f"{at}", 100, 400, 0, (10,), (10,)) for at in range(8)))
    operations = strategy_of(f"pipeline:schedule={schedule},microbatches=4").plan(footprint, 2, 8).operations
    for step in operations:
        if step.send:
            assert (step.send.target in {operations[before].rank for before in step.after}) is due


def test_in_1f1b_who_sends_waits_until_it_is_received() -> None:
    footprint = replace(SKIP, sections=tuple(Section(f"{at}", 100, 400, 0, (10,), (10,)) for at in range(8)))
    waited = {}
    for schedule in ("gpipe", "1f1b"):
        operations = strategy_of(f"pipeline:schedule={schedule},microbatches=4").plan(footprint, 2, 8).operations
        sent = {at for at, step in enumerate(operations) if step.send and step.send.source == 0}
        waited[schedule] = any(sent & set(step.after) for step in operations if step.rank == 0 and not step.send)
    assert waited == {"gpipe": False, "1f1b": True}


def test_what_is_computed_again_is_planned() -> None:
    plan = strategy_of("pipeline:checkpoint,microbatches=3").plan(SKIP, 3, 9)
    phases = [step.phase for step in plan.operations]
    assert (phases.count("forward"), phases.count("backward")) == (18, 9)


def test_a_padded_batch_is_sent_padded() -> None:
    whole = strategy_of("pipeline:microbatches=3").plan(SKIP, 3, 9)
    padded = strategy_of("pipeline:microbatches=3").plan(SKIP, 3, 7)
    assert padded.bytes_per_step == whole.bytes_per_step
