"""Layers split by columns and rows, and the compute and communication that follow; units of sharded models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.core.errors import UserError
from scalewise.strategies.plan import Footprint, Section, SplittableLayer, units_of
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.tensor_splitting import (
    NARROW,
    LayerSplit,
    backward_pass,
    declared_splits,
    forward_pass,
    part_bytes,
)


def _matrix(name: str, role: Any, columns: int, rows: int, source: int, **more: Any) -> SplittableLayer:
    """Layer with 100 bytes per column of output and per row of input."""
    options: dict[str, Any] = {
        "group": name.partition(".")[0],
        "unit": 1,
        "input_learns": True,
        "flops": columns * rows,
        **more,
    }
    return SplittableLayer(
        name=name, role=role, columns=columns, rows=rows, source=source, input_bytes=100 * rows,
        output_bytes=100 * columns, **options,
    )  # fmt: skip


ATTENTION = [
    *(_matrix(f"attention.{name}", "columns", 10, 10, 0, unit=2) for name in ("query", "key", "value")),
    _matrix("attention.output", "rows", 10, 10, 1, unit=2),
]
FEED_FORWARD = [_matrix("mlp.0", "columns", 40, 10, 2), _matrix("mlp.2", "rows", 10, 40, 3)]
HEAD = _matrix("head", "", 6, 10, 4, group="")
MODEL = Footprint(
    parameter_names=(
        "head.weight",
        "mlp.2.bias",
        "mlp.2.weight",
        "mlp.0.bias",
        "mlp.0.weight",
        "attention.query.weight",
    ),
    parameter_bytes=(240, 40, 1600, 160, 1600, 400),
    input_bytes=8,
    target_bytes=8,
    output_bytes=24,
    matrices=(*ATTENTION, *FEED_FORWARD, HEAD),
)


def test_heads_are_not_split_and_are_shared_evenly() -> None:
    layer_splits = declared_splits(MODEL.matrices, 3)
    assert layer_splits["attention.query"] == LayerSplit("columns", (4, 4, 2))
    assert layer_splits["attention.output"] == LayerSplit("rows", (4, 4, 2))
    assert layer_splits["mlp.0"] == LayerSplit("columns", (14, 13, 13))
    assert "head" not in layer_splits


def test_layers_with_too_few_columns_are_not_split() -> None:
    assert set(declared_splits(MODEL.matrices, 8)) == {"mlp.0", "mlp.2"}


def test_too_many_devices_are_refused_with_the_largest_number_possible() -> None:
    with pytest.raises(UserError, match="the widest has 40 columns or attention heads; use at most 40 devices"):
        declared_splits(MODEL.matrices, 41)


def test_outputs_of_rows_and_input_gradients_of_columns_are_all_reduced() -> None:
    layer_splits = declared_splits(MODEL.matrices, 2)
    total = 400 + 800 + 60
    forward = forward_pass(MODEL.matrices, layer_splits)
    assert [event.bytes for event in forward.sums] == [1000, 1000]
    heads, wide = (6 + NARROW) / (10 + NARROW), (20 + NARROW) / (40 + NARROW)
    assert forward.sums[0].at == pytest.approx(400 * heads / total)
    assert forward.share == pytest.approx((400 * heads + 800 * wide + 60) / total)
    backward = backward_pass(MODEL.matrices, layer_splits)
    assert [event.bytes for event in backward.sums] == [1000, 1000]
    assert backward.sums[0].at == pytest.approx((60 + 800 * wide) / total)


def test_half_of_a_narrow_layer_takes_more_than_half_the_time() -> None:
    matrices = [
        SplittableLayer("one", "columns", "a", 8, 8, flops=100),
        SplittableLayer("two", "rows", "a", 8, 8, flops=100),
    ]
    assert forward_pass(matrices, declared_splits(matrices, 2)).share == pytest.approx((4 + 12) / (8 + 12))


def test_the_gradient_of_the_data_is_not_all_reduced() -> None:
    first = [replace(matrix, input_learns=matrix.source > 0) for matrix in MODEL.matrices]
    assert len(backward_pass(first, declared_splits(first, 2)).sums) == 1


def test_only_the_first_device_has_the_bias_of_a_layer_split_by_rows() -> None:
    layer_splits = declared_splits(MODEL.matrices, 2)
    assert part_bytes(MODEL, layer_splits, 0) == [240, 40, 800, 80, 800, 240]
    assert part_bytes(MODEL, layer_splits, 1) == [240, 0, 800, 80, 800, 160]


def test_a_step_of_tensor_alternates_compute_and_all_reduce() -> None:
    plan = strategy_of("tensor").plan(MODEL, 2, 3)
    operations = [(step.phase, step.collective.bytes if step.collective else step.samples) for step in plan.operations]
    assert operations == [
        ("load", 3),
        ("forward", 3),
        ("reduce", 3000),
        ("forward", 3),
        ("reduce", 3000),
        ("forward", 3),
        ("loss", 3),
        ("backward", 3),
        ("reduce", 3000),
        ("backward", 3),
        ("reduce", 3000),
        ("backward", 3),
        ("update", 3),
    ]
    assert all(step.after == ((position - 1,) if position else ()) for position, step in enumerate(plan.operations))
    assert {step.count for step in plan.operations} == {2}


def test_hybrid_all_reduces_within_groups_and_between_them() -> None:
    plan = strategy_of("hybrid:tensor=2").plan(MODEL, 4, 3)
    assert not any(step.send for step in plan.operations)  # only collectives of the backend
    pairs = {frozenset((send.source, send.target)) for send in plan.sends}
    assert pairs == {frozenset(pair) for pair in ((0, 1), (2, 3), (0, 2), (1, 3))}
    inside = strategy_of("tensor").plan(MODEL, 2, 3)  # groups of two samples and one
    own = sum(part_bytes(MODEL, declared_splits(MODEL.matrices, 2), 0))
    between = [send.bytes for send in plan.sends if {send.source, send.target} == {0, 2}]
    assert sum(between) == pytest.approx(2 * own, rel=0.5)  # and gloo's headers
    assert plan.bytes_per_step > inside.bytes_per_step + 2 * own
    loads = [(step.rank, step.samples, step.count) for step in plan.operations if step.phase == "load"]
    assert loads == [(0, 2, 2), (2, 1, 2)]


def test_hybrid_stages_are_pipelines_whose_gradients_are_reduced_by_stage() -> None:
    sections = tuple(Section(name, 1000, size, 100, (40,), (40,)) for name, size in (("first", 400), ("second", 800)))
    plan = strategy_of("hybrid:stages=2").plan(replace(MODEL, sections=sections), 4, 6)
    inside = {(step.send.source, step.send.target) for step in plan.operations if step.send and step.phase == "receive"}
    assert inside == {(0, 1), (1, 0), (2, 3), (3, 2)}
    reduced = [send for send in plan.sends if abs(send.source - send.target) == 2]
    assert {(send.source, send.target) for send in reduced} == {(0, 2), (2, 0), (1, 3), (3, 1)}
    headers = 4 * 2 * 96  # two steps, two segments, two notices each
    assert sum(send.bytes for send in reduced if send.source in (0, 2)) == 2 * 400 + headers
    assert sum(send.bytes for send in reduced if send.source in (1, 3)) == 2 * 800 + headers


def test_a_hybrid_of_one_group_has_the_plan_of_its_inner_strategy() -> None:
    sections = tuple(Section(str(number), 1000, 400, 100, (40,), (40,)) for number in range(4))
    model = replace(MODEL, sections=sections)
    named = "columns=mlp.0,rows=mlp.2"
    pairs = [("hybrid:tensor=2", "tensor"), ("hybrid:stages=2", "pipeline")]
    pairs += [(f"hybrid:tensor=2,{named}", f"tensor:{named}")]
    pairs += [("hybrid:stages=2,cut=3,microbatches=3", "pipeline:cut=3,microbatches=3")]
    plans = [strategy_of(alone).plan(model, 2, 6) for _, alone in pairs]
    assert [strategy_of(inside).plan(model, 2, 6) for inside, _ in pairs] == plans
    assert plans[0] != plans[2]
    assert plans[1] != plans[3]


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        ("hybrid:tensor=2", 3, "--devices must be a multiple of 2, not 3"),
        ("hybrid:tensor=1", 2, "option 'tensor' of hybrid is 1; it must be 2 or more"),
        ("hybrid:stages=3", 4, "hybrid:stages=3 needs groups of 3 devices: --devices must be a multiple of 3, not 4"),
        ("hybrid:tensor=2,stages=2", 4, "hybrid takes tensor=2 or stages=2, not both; leave one out"),
        (
            "hybrid:cut=3",
            2,
            "hybrid: cut=3 needs stages=..., but this hybrid has tensor=2; leave cut out, or use stages=2",
        ),
        ("hybrid:stages=2,columns=a,rows=b", 2, "hybrid: columns=a needs tensor=..., but this hybrid has stages=2"),
        ("hybrid:stages=2,cut=3+3", 2, "cut=3+3 names '3' 2 times; name each module once"),
        ("hybrid:tensor=two", 2, "option 'tensor' of hybrid is 'two'; it must be a whole number"),
    ],
)
def test_impossible_hybrids_are_refused(text: str, devices: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        strategy_of(text).plan(MODEL, devices, 4)
    assert message in str(error.value)


def test_units_are_the_elements_of_sequences() -> None:
    names = ["wte.weight", "h.0.mlp.0.weight", "h.0.mlp.2.weight", "h.1.attention.weight", "norm.bias"]
    assert units_of(names) == {"": [0, 4], "h.0": [1, 2], "h.1": [3]}


def test_units_of_a_model_without_sequences_are_its_children() -> None:
    assert units_of(["encoder.weight", "encoder.bias", "decoder.weight", "scale"]) == {
        "encoder": [0, 1],
        "decoder": [2],
        "": [3],
    }


SHARDED = Footprint(
    parameter_names=("head", "1.weight", "0.weight"),
    parameter_bytes=(40, 400, 800),
    parameter_shapes=((10,), (5, 20), (10, 20)),
    input_bytes=8,
    target_bytes=8,
    output_bytes=24,
)


def test_sharded_gathers_layers_twice_except_the_last_one_and_the_models_own_parameters() -> None:
    plan = strategy_of("sharded").plan(SHARDED, 4, 8, "nccl")
    collectives = [(step.phase, step.collective.bytes) for step in plan.operations if step.collective]
    assert collectives == [
        ("gather", 48),  # ten numbers in shards of three
        ("gather", 960),
        ("gather", 640),
        ("gather", 960),
        ("reduce", 640),
        ("reduce", 960),
        ("reduce", 48),
    ]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_sharded_moves_less_than_three_models_per_device_on_nccl(devices: int) -> None:
    layers = 16
    model = Footprint(
        parameter_names=tuple(f"{layer}.weight" for layer in reversed(range(layers))),
        parameter_bytes=(4096,) * layers,
        parameter_shapes=((64, 16),) * layers,
        input_bytes=8,
        target_bytes=8,
        output_bytes=24,
    )
    plan = strategy_of("sharded").plan(model, devices, 8, "nccl")
    layers_sent = 3 * layers - 1  # the last layer is gathered once
    assert plan.bytes_per_step / devices == layers_sent * 4096 * (devices - 1) / devices


def test_sharded_prefetches_a_layer_with_nccl_but_not_with_gloo() -> None:
    for backend, overlaps in (("nccl", True), ("gloo", False)):
        operations = strategy_of("sharded").plan(SHARDED, 2, 8, backend).operations  # type: ignore[arg-type]
        second = [at for at, step in enumerate(operations) if step.phase == "forward"][1]
        gathers_third = [at for at, step in enumerate(operations) if step.phase == "gather"][2]
        assert (second not in operations[gathers_third].after) == overlaps
