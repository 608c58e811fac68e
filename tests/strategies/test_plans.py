"""Plans as literal tables, and the traffic of each strategy by the survey's formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.core.errors import UserError
from scalewise.strategies.base import batch_shares
from scalewise.strategies.plan import Footprint, Section, SplittableLayer, share_sizes
from scalewise.strategies.registry import STRATEGIES, strategy_of

MODEL = Footprint(
    parameter_bytes=(40_000_000, 8_000_000),
    input_bytes=48_000,
    target_bytes=8,
    output_bytes=40,
    sections=tuple(Section(name, 1000, 16_000_000, 100, (4000,), (4000,)) for name in ("first", "second", "third")),
)
S = 48_000_000


def test_single_runs_its_phases_one_after_the_other() -> None:
    plan = strategy_of("single").plan(MODEL, 1, 20)
    assert [(step.phase, step.after) for step in plan.operations] == [
        ("load", ()),
        ("forward", (0,)),
        ("loss", (1,)),
        ("backward", (2,)),
        ("update", (3,)),
    ]
    assert plan.bytes_per_step == 0


def test_data_parallel_runs_the_studys_eight_steps() -> None:
    plan = strategy_of("data-parallel").plan(MODEL, 2, 5)
    assert [
        (step.phase, step.rank, step.send.target if step.send else None, step.samples) for step in plan.operations
    ] == [
        ("load", 0, None, 5),
        ("scatter", 0, 1, 0),
        ("broadcast", 0, 1, 0),
        ("forward", 0, None, 3),
        ("forward", 1, None, 2),
        ("gather", 1, 0, 0),
        ("loss", 0, None, 5),
        ("scatter", 0, 1, 0),
        ("backward", 0, None, 3),
        ("backward", 1, None, 2),
        ("reduce", 1, 0, 0),
        ("update", 0, None, 5),
    ]


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_the_default_device_transfers_two_models_per_other_device(devices: int) -> None:
    plan = strategy_of("data-parallel").plan(MODEL, devices, 8)
    samples = 8 - share_sizes(8, devices)[0]
    expected = 2 * S * (devices - 1) + samples * (MODEL.input_bytes + 2 * MODEL.output_bytes)
    assert plan.busiest_bytes == pytest.approx(expected, rel=1e-4)


def test_torch_data_parallel_broadcasts_and_reduces_with_nccl() -> None:
    plan = strategy_of("data-parallel:engine=threads").plan(MODEL, 3, 10)
    assert [(step.phase, step.rank, step.samples, step.count) for step in plan.operations] == [
        ("load", 0, 10, 1),
        ("scatter", 0, 0, 1),
        ("scatter", 0, 0, 1),
        ("broadcast", 0, 0, 3),
        ("forward", 0, 4, 1),
        ("forward", 1, 4, 1),
        ("forward", 2, 2, 1),
        ("gather", 1, 0, 1),
        ("gather", 2, 0, 1),
        ("loss", 0, 10, 1),
        ("scatter", 0, 0, 1),
        ("scatter", 0, 0, 1),
        ("backward", 0, 4, 1),
        ("backward", 1, 4, 1),
        ("backward", 2, 2, 1),
        ("reduce", 0, 0, 3),
        ("update", 0, 10, 1),
    ]


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_torch_data_parallel_sends_two_models_over_every_link(devices: int) -> None:
    plan = strategy_of("data-parallel:engine=threads").plan(MODEL, devices, 8)
    model = [step.collective.bytes for step in plan.operations if step.collective]
    assert model == [S, S]
    assert plan.bytes_per_step == pytest.approx(2 * S * (devices - 1), rel=0.01)


def test_a_plan_of_thousands_of_ranks_is_as_short_as_that_of_two() -> None:
    few = strategy_of("mirrored").plan(MODEL, 2, 8192)
    many = strategy_of("mirrored").plan(MODEL, 4096, 8192)
    assert len(many.operations) == len(few.operations)
    assert {step.count for step in many.operations} == {4096}


def test_equal_workers_are_planned_once_and_each_pushes_and_pulls() -> None:
    plan = strategy_of("parameter-server:piece_MB=100").plan(MODEL, 3, 9)
    grouped = [(step.phase, step.count) for step in plan.operations if step.send]
    assert grouped == [("push", 3), ("push", 3), ("pull", 3)]
    sends = [(send.source, send.target) for send in plan.sends]
    assert sends == 2 * [(0, 3), (1, 3), (2, 3)] + [(3, 0), (3, 1), (3, 2)]
    assert plan.busiest_bytes == pytest.approx(2 * 3 * S, rel=1e-4)


def test_gradients_are_sent_when_measured_to_be_ready() -> None:
    late = replace(MODEL, ready=(0.1, 1.0))
    plan = strategy_of("mirrored").plan(late, 2, 8)
    assert [step.share for step in plan.operations if step.phase == "backward"] == pytest.approx([0.1, 0.9])
    # Two of three pieces of 16 MB are complete with the first gradient, the last one with the second.
    synchronous, asynchronous = (
        strategy_of(f"{name}:piece_MB=16") for name in ("parameter-server", "parameter-server-async")
    )
    for plan in (synchronous.plan(late, 2, 8), asynchronous.plan(late, 1, 8)):
        shares = [step.share for step in plan.operations if step.phase == "backward"]
        assert shares == pytest.approx([0.1, 0.0, 0.9])
        updates = [step.share for step in plan.operations if step.phase == "update"]
        assert sum(updates) == pytest.approx(1.0)


def test_synchronous_workers_are_not_replaced() -> None:
    with pytest.raises(UserError, match="replacements=1 is not possible with max_staleness=0: "):
        strategy_of("parameter-server-async:max_staleness=0,replacements=1")
    assert strategy_of("parameter-server-async:max_staleness=1,replacements=1").replacements == 1


@pytest.mark.parametrize("strategy", ["mirrored", "ring"])
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_an_all_reduce_sends_less_than_two_models_per_device(strategy: str, devices: int) -> None:
    plan = strategy_of(strategy).plan(MODEL, devices, 8)
    per_device = 2 * S * (devices - 1) / devices
    assert plan.bytes_per_step / devices == pytest.approx(per_device, rel=0.001)
    assert plan.busiest_bytes == pytest.approx(2 * per_device, rel=0.001)
    assert per_device < 2 * S


def test_fp16_gradients_halve_the_bytes() -> None:
    whole = strategy_of("mirrored").plan(MODEL, 4, 8).bytes_per_step
    assert strategy_of("mirrored:compress=fp16").plan(MODEL, 4, 8).bytes_per_step == pytest.approx(whole / 2, rel=0.001)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_central_storage_copies_three_models_per_device_through_the_host(devices: int) -> None:
    plan = strategy_of("central-storage").plan(MODEL, devices, 8)
    assert (plan.bytes_per_step, plan.busiest_bytes) == (3 * S * devices, 3 * S * devices)


def test_central_storage_fetches_for_backward_only_what_it_reads() -> None:
    plan = strategy_of("central-storage").plan(replace(MODEL, read_again=(True, False)), 1, 8)
    assert plan.bytes_per_step == 2 * S + 40_000_000


def test_central_storage_fetches_one_layer_ahead() -> None:
    layers = Footprint(parameter_bytes=(3, 2, 1), input_bytes=1, target_bytes=1, output_bytes=1)
    plan = strategy_of("central-storage").plan(layers, 1, 4)
    assert [(step.phase, step.send.bytes if step.send else None, step.after) for step in plan.operations] == [
        ("load", None, ()),
        ("pull", 1, (0,)),
        ("forward", None, (0, 1)),
        ("pull", 2, (0,)),
        ("forward", None, (2, 3)),
        ("pull", 3, (2,)),
        ("forward", None, (4, 5)),
        ("loss", None, (6,)),
        ("pull", 3, (4,)),
        ("backward", None, (7, 8)),
        ("push", 3, (9,)),
        ("pull", 2, (6,)),
        ("backward", None, (9, 11)),
        ("push", 2, (12,)),
        ("pull", 1, (9,)),
        ("backward", None, (12, 14)),
        ("push", 1, (15,)),
        ("update", None, (10, 13, 16)),
    ]
    nothing_ahead = strategy_of("central-storage:prefetch=0").plan(layers, 1, 4)
    assert [step.after for step in nothing_ahead.operations if step.phase == "pull"][:3] == [(0,), (2,), (4,)]


def test_every_operation_waits_only_for_earlier_ones() -> None:
    pair = (
        SplittableLayer("0", "columns", "0", 8, 8, flops=1),
        SplittableLayer("1", "rows", "0", 8, 8, source=1, flops=1),
    )
    model = replace(MODEL, parameter_names=("1.weight", "0.weight"), matrices=pair)
    for name in STRATEGIES:
        devices = {"single": 1, "hybrid": 4}.get(name, 3)
        for position, step in enumerate(strategy_of(name).plan(model, devices, 7).operations):
            assert all(before < position for before in step.after), (name, position)


def test_a_device_without_samples_is_not_in_the_plan_of_data_parallel() -> None:
    plan = strategy_of("data-parallel").plan(MODEL, 4, 2)
    assert {step.rank for step in plan.operations} == {0, 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mirorred", "unknown strategy 'mirorred' (did you mean 'mirrored'?); valid: single, data-parallel, mirrored"),
        ("single:x=1", "'single' takes no options, got 'x'"),
        ("mirrored:buckets=3", "unknown option of mirrored 'buckets' (did you mean 'bucket_MB'?); valid: bucket_MB"),
        ("mirrored:bucket_MB=0", "option 'bucket_MB' of mirrored is 0; it must be above 0"),
        ("mirrored:bucket_MB=big", "option 'bucket_MB' of mirrored is 'big'; it must be a number"),
        ("mirrored:compress=zip", "option 'compress' of mirrored is 'zip'; valid: none, fp16, powersgd"),
        ("mirrored:bucket_MB=", "option 'bucket_MB' of 'mirrored:bucket_MB=' has no value"),
    ],
)
def test_wrong_strategies_and_options_are_refused_with_the_valid_ones(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        strategy_of(text)
    assert message in str(error.value)


def test_mirrored_is_exact_unless_it_compresses() -> None:
    assert strategy_of("mirrored").exact
    assert not strategy_of("mirrored:compress=powersgd").exact


@pytest.mark.parametrize(
    ("strategy", "devices", "shares"),
    [("mirrored", 4, 4), ("sharded", 4, 4), ("layers", 4, 1), ("pipeline", 2, 1), ("tensor", 3, 1), ("hybrid", 4, 2)],
)
def test_devices_that_share_a_model_share_a_batch(strategy: str, devices: int, shares: int) -> None:
    assert batch_shares(strategy_of(strategy), devices) == shares
