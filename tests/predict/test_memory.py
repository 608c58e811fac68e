"""Peak memory of a device, and the memory of the ranks of each strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.predict.device_costs import Costs
from scalewise.predict.memory import Memory, memory_bytes, peak_memory
from scalewise.strategies.plan import Footprint, Section, SplittableLayer
from scalewise.strategies.rank_memory import LayerMemory, RankMemory, TrainingRun
from scalewise.strategies.registry import strategy_of

WIDE = LayerMemory("0", (100,), kept_bytes=10, forward_bytes=1, backward_bytes=5)
DEEP = LayerMemory("1", (20, 4), kept_bytes=50, forward_bytes=2, backward_bytes=30, frozen_bytes=7)
LOSS = LayerMemory("", (), kept_bytes=3, forward_bytes=0, backward_bytes=6)
LAYERS = (WIDE, DEEP, LOSS)
SECTIONS = (
    Section("0", flops=100, parameter_bytes=100, kept_bytes=5, passed_bytes=(8,), returned_bytes=(8,)),
    Section("1", flops=100, parameter_bytes=24, kept_bytes=5, passed_bytes=(), returned_bytes=()),
)
FOOTPRINT = Footprint((4, 20, 100), input_bytes=2, target_bytes=1, output_bytes=4, sections=SECTIONS)


def held(strategy: str, rank: int = 0, **more: Any) -> RankMemory:
    run = TrainingRun(**{"devices": 2, "batch": 8, "footprint": FOOTPRINT, **more})
    return strategy_of(strategy).rank_memory(rank, run, LAYERS)


def test_backward_allocates_gradients_and_frees_activations() -> None:
    """Backward of the loss has 63 + 6 bytes of activations, that of `1` 60 + 30 and 24 of gradients, that of `0` 10 + 5
    and 124."""
    assert peak_memory(RankMemory((WIDE, DEEP, LOSS)), "sgd") == Memory(weights=131, gradients=124, activations=15)
    small = LayerMemory("0", (1,), kept_bytes=10, forward_bytes=1, backward_bytes=5)
    assert peak_memory(RankMemory((small, DEEP, LOSS)), "sgd") == Memory(weights=32, gradients=24, activations=90)


def test_the_workspace_of_the_current_layer_is_part_of_the_peak() -> None:
    """Backward of `1` has 60 + 30 bytes of activations, 24 of gradients and 31 + 100 of weights."""
    deep = replace(DEEP, workspace_bytes=(500, 400))
    assert peak_memory(RankMemory((WIDE, deep, LOSS)), "sgd") == Memory(weights=131, activations=62, workspace=500)
    deep = replace(DEEP, workspace_bytes=(0, 400))
    assert peak_memory(RankMemory((WIDE, deep, LOSS)), "sgd") == Memory(131, 24, 0, 90, workspace=400)


def test_workspace_is_limited_to_the_remaining_memory() -> None:
    """Without workspace the peak is 270 bytes, in backward of `0`."""
    held = RankMemory((WIDE, replace(DEEP, workspace_bytes=(500, 400)), LOSS))
    assert peak_memory(held, "sgd", limit_bytes=300).total == 300
    assert peak_memory(held, "sgd", limit_bytes=0) == Memory(weights=131, gradients=124, activations=15)


def test_a_workspace_that_stays_is_not_left_out_under_a_limit() -> None:
    held = RankMemory((replace(WIDE, libraries=(("cuBLAS", 64),)), DEEP, LOSS))
    assert peak_memory(held, "sgd", limit_bytes=0).workspace == 64


def test_layers_share_what_a_library_keeps_for_the_same() -> None:
    wide, deep = (replace(layer, libraries=kept) for layer, kept in ((WIDE, (("a", 4),)), (DEEP, (("a", 4), ("b", 2)))))
    assert peak_memory(RankMemory((wide, deep, LOSS)), "sgd").workspace == 6


def test_a_model_without_activations_peaks_in_the_update() -> None:
    layer = LayerMemory("0", (100,), 0, 0, 0)
    assert peak_memory(RankMemory((layer,), input_bytes=9), "adam") == Memory(100, 100, 200, 0, 9, 0)
    assert peak_memory(RankMemory((layer,)), "momentum").optimizer == 100


def test_the_peak_can_be_in_forward() -> None:
    layer = LayerMemory("0", (1,), kept_bytes=10, forward_bytes=500, backward_bytes=5)
    assert peak_memory(RankMemory((layer,)), "sgd").activations == 510


def test_a_new_gradient_exists_beside_its_bucket() -> None:
    """DDP copies each gradient when it is complete, so the largest gradient of a layer exists twice."""
    assert held("mirrored").gradients == "stay"
    assert peak_memory(held("mirrored"), "sgd").gradients == 124 + 100
    assert held("mirrored:compress=powersgd").buffer_bytes == 124


def test_the_default_device_has_buffers_for_all_gradients() -> None:
    root, other = (held("data-parallel", rank, devices=4) for rank in (0, 1))
    assert (root.updates, root.buffer_bytes, root.input_bytes) == (True, 3 * 124 + 8 * 4, 8 * 3)
    assert (other.updates, other.buffer_bytes, other.input_bytes) == (False, 124 + 2 * 4, 2 * 2)
    # The default device computes the loss of the whole batch, which is four shares; the other devices have no loss.
    assert [layer.kept_bytes for layer in root.layers] == [10, 50, 12]
    assert [layer.backward_bytes for layer in root.layers] == [5 + 8 * 4, 30 + 8 * 4, 24]
    assert [layer.module for layer in other.layers] == ["0", "1"]


def test_a_worker_has_no_optimizer_state_and_on_a_gpu_no_gradient_buffers() -> None:
    assert peak_memory(held("parameter-server"), "adam").optimizer == 0
    assert (held("parameter-server").gradients, held("parameter-server", on_gpu=True).gradients) == ("stay", "leave")
    assert (held("parameter-server").buffer_bytes, held("parameter-server", on_gpu=True).buffer_bytes) == (124, 0)


def test_central_storage_holds_a_layer_and_those_fetched_ahead() -> None:
    assert held("central-storage:prefetch=0").fetched_bytes == (100, 24, 0)
    ahead = held("central-storage:prefetch=1")
    assert (ahead.fetched_bytes, ahead.fetched_again_bytes) == ((124, 24, 0), (100, 124, 24))
    # Backward of `0` needs its weights and their gradient, which is pushed at once.
    assert peak_memory(held("central-storage:prefetch=0"), "adam") == Memory(107, 100, 0, 15, 4 * 3, 0)


def test_central_storage_does_not_fetch_weights_that_backward_does_not_read() -> None:
    """Backward does not read the weights of the first layer, whose input needs no gradient."""
    names = ("1.bias", "1.weight", "0.weight")
    footprint = replace(FOOTPRINT, parameter_names=names, read_again=(False, True, False))
    memory = held("central-storage:prefetch=0", footprint=footprint)
    assert (memory.fetched_bytes, memory.fetched_again_bytes) == ((100, 24, 0), (0, 24, 0))


def test_a_stage_holds_its_layers_and_its_messages() -> None:
    first, last = (held("layers", rank) for rank in (0, 1))
    assert [layer.module for layer in first.layers] == ["0"]
    assert [layer.module for layer in last.layers] == ["1", ""]
    assert (first.buffer_bytes, last.buffer_bytes) == (0, 8 * 8)
    assert (first.returned_bytes, last.returned_bytes) == (8 * 8, 0)
    assert (first.gradients, first.input_bytes) == ("anew", 8 * 3)


def test_a_stage_excludes_bytes_of_the_next_stage_and_keeps_its_output() -> None:
    """Layer `1` allocates 3 of the 5 bytes in backward of `0`; no other layer keeps the output of `0`."""
    wide = replace(WIDE, backward_by_layer=((1, 3),), passed_bytes=7)
    run = TrainingRun(2, 8, FOOTPRINT)
    [own] = strategy_of("layers").rank_memory(0, run, (wide, DEEP, LOSS)).layers
    assert (own.kept_bytes, own.backward_bytes) == (10 + 7, 5 - 3)
    sections = (*SECTIONS, replace(SECTIONS[1], name="2"))
    three = strategy_of("layers:cut=2").rank_memory(
        0,
        replace(run, footprint=replace(FOOTPRINT, sections=sections)),
        (WIDE, replace(DEEP, output_by_layer=((1, 50),)), replace(DEEP, module="2"), LOSS),
    )
    assert [layer.backward_bytes for layer in three.layers] == [5 + 50, 30]
    freed = replace(WIDE, output_by_layer=((0, 7),), freed_output_bytes=7)
    [own] = strategy_of("layers").rank_memory(0, run, (freed, DEEP, LOSS)).layers
    assert own.backward_bytes == 5 + 7
    whole = strategy_of("layers").rank_memory(0, replace(run, devices=1), (wide, DEEP, LOSS)).layers
    assert whole == (wide, DEEP, LOSS)


def passes(text: str, rank: int = 0, **more: Any) -> dict[tuple[str, int, bool], int]:
    """`beside_bytes` of the passes of a rank, by (phase, gradient_bytes, adds)."""
    stage_passes = held(text, rank, **more).passes
    return {(one.phase, one.gradient_bytes, one.adds): one.beside_bytes for one in stage_passes}


def test_a_pipeline_keeps_the_micro_batches_in_flight() -> None:
    """The first stage keeps 10 bytes per micro-batch: of two with 1f1b, of four with gpipe.

    Until the end of the step, gpipe also keeps the 2 * 8 bytes sent for each finished micro-batch, 1f1b those of the
    first.
    """
    text = "pipeline:microbatches=4"
    assert strategy_of(text).samples_at_once(TrainingRun(2, 8, FOOTPRINT)) == 2
    assert passes(text) == {
        ("forward", 0, False): 10,
        ("backward", 0, False): 10,
        ("forward", 100, False): 10 + 16,
        ("backward", 100, True): 10 + 16,
    }
    assert set(passes(text, on_gpu=True).values()) == {10}
    assert passes(f"{text},schedule=gpipe") == {
        ("forward", 0, False): 30,
        ("backward", 0, False): 30,
        ("backward", 100, True): 3 * 16,
    }
    assert set(passes(text, 1).values()) == {0}


def test_the_first_backward_of_gpipe_is_the_peak() -> None:
    """Other micro-batches keep 3 * 53 bytes; the first backward has 50 + 30, and 24 of gradients."""
    memory = held("pipeline:microbatches=4,schedule=gpipe", 1)
    assert peak_memory(memory, "sgd").activations == 3 * 53 + 50 + 30
    assert peak_memory(memory, "sgd").gradients == 24


def test_a_recomputed_stage_keeps_its_output() -> None:
    """The output has 8 bytes for each of two samples. The loss is not recomputed and keeps its 3 bytes."""
    text = "pipeline:microbatches=4,schedule=gpipe,checkpoint=true"
    first = passes(text)
    assert first["forward", 0, False] == first["backward", 0, False] == 4 * 2 * 8
    *_, last, forward, backward = held(text, 1).passes[:4]
    assert [one.layers for one in (last, forward, backward)] == [range(1, 2), range(1), range(1)]
    assert [one.beside_bytes for one in (last, forward, backward)] == [3 * 3] * 3


def test_two_stages_of_one_device_keep_bytes_of_both() -> None:
    """The device has stages 0 and 2 of four. Two micro-batches have passed stage 0 when the first reaches stage 2. Of
    each finished micro-batch, the 32 bytes that a stage sent in each direction are kept."""
    layers = (*(LayerMemory(f"{at}", (100,), 10**at, 0, 0) for at in range(4)), LOSS)
    sections = tuple(Section(f"{at}", 100, 100, 5, (8,), (8,)) for at in range(4))
    run = TrainingRun(2, 8, replace(FOOTPRINT, sections=sections))
    memory = strategy_of("pipeline:schedule=interleaved,microbatches=2").rank_memory(0, run, layers)
    assert [layer.module for layer in memory.layers] == ["0", "2"]
    assert [(one.layers, one.phase, one.beside_bytes, one.gradient_bytes) for one in memory.passes] == [
        (range(1), "forward", 1, 0),
        (range(1, 2), "forward", 2 * 1 + 100, 0),
        (range(1, 2), "backward", 2 * 1 + 100, 0),
        (range(1, 2), "backward", 2 * 1 + 64, 100),
        (range(1), "backward", 1 + 2 * 64, 100),
        (range(1), "backward", 2 * 64 + 32, 200),
    ]


def test_accumulated_parts_add_their_gradients() -> None:
    assert passes("layers", accumulate=2) == {
        ("forward", 0, False): 0,
        ("backward", 0, False): 0,
        ("forward", 100, False): 0,
        ("backward", 100, True): 0,
    }


def test_a_pipeline_has_receive_buffers_for_every_micro_batch() -> None:
    """Four micro-batches of two samples, 8 bytes each way; the second stage also keeps the gradients that it sends."""
    first, last = (held("pipeline:microbatches=4", rank) for rank in (0, 1))
    assert (first.buffer_bytes, last.buffer_bytes) == (4 * 2 * 8, 4 * 2 * 8 + 2 * 8)
    assert (first.returned_bytes, last.returned_bytes) == (0, 0)


MATRICES = (
    SplittableLayer("0", "columns", "0", 4, 4, input_bytes=5),
    SplittableLayer("1", "rows", "0", 4, 4, output_bytes=9),
)


def test_activations_between_columns_and_rows_are_split() -> None:
    wide = replace(WIDE, backward_bytes=40, backward_by_layer=((0, 4), (1, 20)), workspace_bytes=(0, 6))
    run = TrainingRun(2, 8, replace(FOOTPRINT, matrices=MATRICES))
    columns, rows, loss = strategy_of("tensor").rank_memory(1, run, (wide, DEEP, LOSS)).layers
    assert (columns.parameters, rows.parameters) == ((50,), (10, 2))
    assert (columns.kept_bytes, rows.kept_bytes) == (5, 50)
    # Of 40 bytes, 16 are the gradient of the input of columns; 20 and 4 belong to their output.
    assert columns.backward_bytes == 16 + 10 + 2 + 8 * 5
    assert columns.workspace_bytes == (0, 3)
    assert rows.forward_bytes == 2 + 8 * 9
    assert loss == LOSS


@pytest.mark.parametrize(("devices", "gradients"), [(2, "anew"), (4, "stay")])
def test_a_single_group_has_no_gradient_buckets(devices: int, gradients: str) -> None:
    more: dict[str, Any] = {"devices": devices, "footprint": replace(FOOTPRINT, matrices=MATRICES)}
    assert held("hybrid:tensor=2", **more).gradients == gradients
    assert held("hybrid:stages=2", **more).flat_bytes == (0 if gradients == "anew" else 100)


def test_weights_are_sharded_and_gathered_during_their_passes() -> None:
    """`0` has 100 bytes; `1` has 24 and stays gathered from forward to backward."""
    memory = held("sharded")
    assert [layer.parameters for layer in memory.layers] == [(50,), (10, 2), ()]
    assert peak_memory(memory, "adam").optimizer == 2 * 62
    # Forward has the flat buffer and the weights that were copied from it.
    assert [layer.forward_bytes for layer in memory.layers] == [1 + 2 * 100, 2 + 2 * 24, 24]
    # Backward has the weights, and the gradients less their shards. During backward of `1` the weights of `0` are
    # gathered; during backward of `0` the gradients of `1` are reduced.
    assert [layer.backward_bytes for layer in memory.layers] == [5 + 100 + 50 + 24, 30 + 24 + 12 + 100, 6 + 24]


def test_memory_of_a_unit_with_neighbours_on_both_sides() -> None:
    """Backward of the second of two layers comes first and needs the copied weights; backward of the first layer has
    all gradients of the unit."""
    layers = (*(LayerMemory(name, (100,), 0, 0, 0) for name in ("0", "1.a", "1.b", "2")), LOSS)
    _, first, second, *_ = strategy_of("sharded").rank_memory(0, TrainingRun(4, 8, FOOTPRINT), layers).layers
    assert second.backward_bytes == 200 + 100 + max(100 + 75, 200)
    assert first.backward_bytes == 200 + 100 + 100 + 150


def test_weights_of_the_model_itself_stay_gathered() -> None:
    layers = (LayerMemory("embedding", (40,), 0, 0, 0), LayerMemory("blocks.0", (100,), 0, 0, 0), LOSS)
    own, block, loss = strategy_of("sharded").rank_memory(0, TrainingRun(2, 8, FOOTPRINT), layers).layers
    assert [own.forward_bytes, block.forward_bytes, loss.forward_bytes] == [40, 40 + 200, 40 + 100]
    assert own.backward_bytes == 40 + 20


def test_a_single_device_does_not_gather_but_copies_weights() -> None:
    [layer, *_] = held("sharded", devices=1).layers
    assert (layer.parameters, layer.forward_bytes, layer.backward_bytes) == ((100,), 1 + 100, 5 + 100 + 24)


def profile(*peaks: int) -> ProfileDocument:
    steps = [
        StepCost(batch=batch, forward=1, backward=1, update=1, load=0, peak_memory_bytes=peak)
        for batch, peak in zip((10, 20), peaks, strict=False)
    ]
    layers = (LayerCost(name="Linear-1", parameter_bytes=1000, activation_bytes=10, flops=1),)
    return ProfileDocument(
        workload="w", device="d", execution="eager", samples_per_epoch=100, parameter_bytes=1000, layers=layers,
        steps=tuple(steps) or (StepCost(batch=10, forward=1, backward=1, update=1, load=0),), input_bytes=4,
    )  # fmt: skip


def test_profiled_peaks_are_corrected_by_the_strategys_planned_memory() -> None:
    measured = profile(5000, 6000)
    assert memory_bytes(measured, Costs(measured), strategy_of("single"), 15) == 5500
    assert memory_bytes(measured, Costs(measured), strategy_of("mirrored"), 15, 2) == 5500 + 1000


def test_without_profiled_peaks_memory_is_planned_from_the_layers() -> None:
    """Weights, Adam's two copies, gradient; batch, output of the layer, its gradient and that of the input."""
    without_peaks = profile()
    assert memory_bytes(without_peaks, Costs(without_peaks), strategy_of("single"), 10) == 4000 + 40 + 100 + 100 + 40
