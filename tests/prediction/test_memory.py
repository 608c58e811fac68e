"""What a device must hold, moment by moment, and which part of it each strategy's ranks have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.plan import Footprint, Matrix, Section
from scalewise.prediction.costs import Costs
from scalewise.prediction.held import Held, LayerMemory, Run
from scalewise.prediction.holdings import HOLDINGS, held_by, samples_at_a_time
from scalewise.prediction.memory import Memory, memory_bytes, most_by_layer, peak_memory
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost
from scalewise.strategies.registry import STRATEGIES, strategy_of

WIDE = LayerMemory("0", (100,), kept_bytes=10, forward_bytes=1, backward_bytes=5)
DEEP = LayerMemory("1", (20, 4), kept_bytes=50, forward_bytes=2, backward_bytes=30, frozen_bytes=7)
LOSS = LayerMemory("", (), kept_bytes=3, forward_bytes=0, backward_bytes=6)
LAYERS = (WIDE, DEEP, LOSS)
SECTIONS = (
    Section("0", flops=100, parameter_bytes=100, kept_bytes=5, passed_bytes=(8,), returned_bytes=(8,)),
    Section("1", flops=100, parameter_bytes=24, kept_bytes=5, passed_bytes=(), returned_bytes=()),
)
FOOTPRINT = Footprint((4, 20, 100), input_bytes=2, target_bytes=1, output_bytes=4, sections=SECTIONS)


def held(strategy: str, rank: int = 0, **more: Any) -> Held:
    run = Run(**{"devices": 2, "batch": 8, "footprint": FOOTPRINT, **more})
    return held_by(strategy_of(strategy), rank, run, LAYERS)


def test_every_strategy_says_what_its_ranks_hold() -> None:
    assert set(HOLDINGS) >= set(STRATEGIES)


def test_gradients_come_while_activations_go() -> None:
    """Backward in the loss: 63 + 6 of activations. In `1`: 60 + 30, and 24 of gradients. In `0`: 10 + 5, and 124."""
    assert peak_memory(Held((WIDE, DEEP, LOSS)), "sgd") == Memory(weights=131, gradients=124, activations=15)
    small = LayerMemory("0", (1,), kept_bytes=10, forward_bytes=1, backward_bytes=5)
    assert peak_memory(Held((small, DEEP, LOSS)), "sgd") == Memory(weights=32, gradients=24, activations=90)


def test_what_is_there_is_known_layer_by_layer() -> None:
    """Weights and Adam's state are always there, 131 and 248."""
    found = most_by_layer(Held((WIDE, DEEP, LOSS)), "adam")
    assert found["0", "forward"] == 379 + 10 + 1
    assert found["1", "backward"] == 379 + 60 + 30 + 24
    assert found["0", "backward"] == 379 + 10 + 5 + 124
    assert set(found) == {(path, phase) for path in ("0", "1", "") for phase in ("forward", "backward")}


def test_the_update_is_the_peak_of_a_model_without_activations() -> None:
    layer = LayerMemory("0", (100,), 0, 0, 0)
    assert peak_memory(Held((layer,), input_bytes=9), "adam") == Memory(100, 100, 200, 0, 9, 0)
    assert peak_memory(Held((layer,)), "momentum").optimizer == 100


def test_forward_may_be_the_peak() -> None:
    layer = LayerMemory("0", (1,), kept_bytes=10, forward_bytes=500, backward_bytes=5)
    assert peak_memory(Held((layer,)), "sgd").activations == 510


def test_buckets_hold_all_gradients_beside_the_one_being_made() -> None:
    """DDP copies each gradient when it is complete: the largest of a layer is there twice."""
    assert held("mirrored").gradients == "stay"
    assert peak_memory(held("mirrored"), "sgd").gradients == 124 + 100
    assert held("mirrored:compress=powersgd").buffer_bytes == 124


def test_the_default_device_has_room_for_the_gradients_of_all() -> None:
    root, other = (held("data-parallel", rank, devices=4) for rank in (0, 1))
    assert (root.updates, root.buffer_bytes, root.input_bytes) == (True, 3 * 124 + 8 * 4, 8 * 3)
    assert (other.updates, other.buffer_bytes, other.input_bytes) == (False, 124 + 2 * 4, 2 * 2)
    # The loss is that of the whole batch, four times a share of it, and the others have none.
    assert [layer.kept_bytes for layer in root.layers] == [10, 50, 12]
    assert [layer.backward_bytes for layer in root.layers] == [5 + 8 * 4, 30 + 8 * 4, 24]
    assert [layer.module for layer in other.layers] == ["0", "1"]


def test_a_worker_of_servers_keeps_no_optimizer_and_on_a_gpu_no_gradients() -> None:
    assert peak_memory(held("parameter-server"), "adam").optimizer == 0
    assert (held("parameter-server").gradients, held("parameter-server", on_gpu=True).gradients) == ("stay", "leave")
    assert (held("parameter-server").buffer_bytes, held("parameter-server", on_gpu=True).buffer_bytes) == (124, 0)


def test_central_storage_lends_a_layer_and_the_next() -> None:
    assert held("central-storage:prefetch=0").lent_bytes == (100, 24, 0)
    ahead = held("central-storage:prefetch=1")
    assert (ahead.lent_bytes, ahead.lent_again_bytes) == ((124, 24, 0), (100, 124, 24))
    # Backward in `0` has its weights and their gradient, which leaves at once.
    assert peak_memory(held("central-storage:prefetch=0"), "adam") == Memory(107, 100, 0, 15, 4 * 3, 0)


def test_central_storage_lends_nothing_that_backward_does_not_read() -> None:
    """The weights of a first layer, whose inputs need no gradient."""
    names = ("1.bias", "1.weight", "0.weight")
    known = replace(FOOTPRINT, parameter_names=names, read_again=(False, True, False))
    found = held("central-storage:prefetch=0", footprint=known)
    assert (found.lent_bytes, found.lent_again_bytes) == ((100, 24, 0), (0, 24, 0))


def test_a_stage_holds_its_layers_and_what_crosses_the_cut() -> None:
    first, last = (held("layers", rank) for rank in (0, 1))
    assert [layer.module for layer in first.layers] == ["0"]
    assert [layer.module for layer in last.layers] == ["1", ""]
    assert (first.buffer_bytes, last.buffer_bytes) == (0, 8 * 8)
    assert (first.returned_bytes, last.returned_bytes) == (8 * 8, 0)
    assert (first.gradients, first.input_bytes) == ("anew", 8 * 3)


def test_a_stage_is_without_what_the_next_made_and_has_its_outputs_to_send() -> None:
    """Of 5 bytes in backward 3 came from `1`, and what `0` puts out is kept by nobody else."""
    wide = replace(WIDE, backward_of=((1, 3),), passed_bytes=7)
    run = Run(2, 8, FOOTPRINT)
    [own] = held_by(strategy_of("layers"), 0, run, (wide, DEEP, LOSS)).layers
    assert (own.kept_bytes, own.backward_bytes) == (10 + 7, 5 - 3)
    sections = (*SECTIONS, replace(SECTIONS[1], name="2"))
    three = held_by(
        strategy_of("layers:cut=2"),
        0,
        replace(run, footprint=replace(FOOTPRINT, sections=sections)),
        (WIDE, replace(DEEP, put_out=((1, 50),)), replace(DEEP, module="2"), LOSS),
    )
    assert [layer.backward_bytes for layer in three.layers] == [5 + 50, 30]
    gone = replace(WIDE, put_out=((0, 7),), gone_bytes=7)
    [own] = held_by(strategy_of("layers"), 0, run, (gone, DEEP, LOSS)).layers
    assert own.backward_bytes == 5 + 7
    whole = held_by(strategy_of("layers"), 0, replace(run, devices=1), (wide, DEEP, LOSS)).layers
    assert whole == (wide, DEEP, LOSS)


def turns(text: str, rank: int = 0, **more: Any) -> dict[tuple[str, int, bool], int]:
    """Bytes beside each, by phase, gradients that are complete, and whether its own are among them."""
    found = held(text, rank, **more).turns
    return {(turn.phase, turn.gradient_bytes, turn.adds): turn.beside_bytes for turn in found}


def test_a_pipeline_keeps_the_micro_batches_under_way() -> None:
    """The first stage keeps 10 bytes of each; 1f1b goes back when there are two, gpipe when there are four, and then
    has all that it sent, 2 * 8 bytes of each that is through, until the step is over. Of the first, 1f1b has too."""
    text = "pipeline:microbatches=4"
    assert samples_at_a_time(strategy_of(text), Run(2, 8, FOOTPRINT)) == 2
    assert turns(text) == {
        ("forward", 0, False): 10,
        ("backward", 0, False): 10,
        ("forward", 100, False): 10 + 16,
        ("backward", 100, True): 10 + 16,
    }
    assert set(turns(text, on_gpu=True).values()) == {10}
    assert turns(f"{text},schedule=gpipe") == {
        ("forward", 0, False): 30,
        ("backward", 0, False): 30,
        ("backward", 100, True): 3 * 16,
    }
    assert set(turns(text, 1).values()) == {0}


def test_gradients_of_the_first_micro_batch_come_while_the_most_is_kept() -> None:
    """Backward of the last stage: 3 * 53 of others, 53 + 30 of its own and 24 of gradients; then those and one more."""
    found = held("pipeline:microbatches=4,schedule=gpipe", 1)
    assert peak_memory(found, "sgd").activations == 3 * 53 + 50 + 30
    assert peak_memory(found, "sgd").gradients == 24


def test_what_is_computed_again_keeps_what_it_put_out() -> None:
    """8 bytes a sample, of two, also while it is computed again; the loss, which is not, keeps its own 3."""
    text = "pipeline:microbatches=4,schedule=gpipe,checkpoint=true"
    first = turns(text)
    assert first["forward", 0, False] == first["backward", 0, False] == 4 * 2 * 8
    *_, last, forward, backward = held(text, 1).turns[:4]
    assert [turn.layers for turn in (last, forward, backward)] == [range(1, 2), range(1), range(1)]
    assert [turn.beside_bytes for turn in (last, forward, backward)] == [3 * 3] * 3


def test_stages_of_one_device_keep_each_their_own() -> None:
    """0 and 2 of four stages: 2 micro-batches have been through 0 when the first goes through 2. Of each that is
    through stay the 32 bytes that a stage sent on, and back."""
    layers = (*(LayerMemory(f"{at}", (100,), 10**at, 0, 0) for at in range(4)), LOSS)
    sections = tuple(Section(f"{at}", 100, 100, 5, (8,), (8,)) for at in range(4))
    run = Run(2, 8, replace(FOOTPRINT, sections=sections))
    found = held_by(strategy_of("pipeline:schedule=interleaved,microbatches=2"), 0, run, layers)
    assert [layer.module for layer in found.layers] == ["0", "2"]
    assert [(turn.layers, turn.phase, turn.beside_bytes, turn.gradient_bytes) for turn in found.turns] == [
        (range(1), "forward", 1, 0),
        (range(1, 2), "forward", 2 * 1 + 100, 0),
        (range(1, 2), "backward", 2 * 1 + 100, 0),
        (range(1, 2), "backward", 2 * 1 + 64, 100),
        (range(1), "backward", 1 + 2 * 64, 100),
        (range(1), "backward", 2 * 64 + 32, 200),
    ]


def test_parts_that_are_accumulated_add_their_gradients() -> None:
    assert turns("layers", accumulate=2) == {
        ("forward", 0, False): 0,
        ("backward", 0, False): 0,
        ("forward", 100, False): 0,
        ("backward", 100, True): 0,
    }


def test_what_arrives_in_a_pipeline_has_its_place_for_every_micro_batch() -> None:
    """Four of two samples, 8 bytes each way; the second stage also has the gradients that it sends."""
    first, last = (held("pipeline:microbatches=4", rank) for rank in (0, 1))
    assert (first.buffer_bytes, last.buffer_bytes) == (4 * 2 * 8, 4 * 2 * 8 + 2 * 8)
    assert (first.returned_bytes, last.returned_bytes) == (0, 0)


MATRICES = (Matrix("0", "columns", "0", 4, 4, input_bytes=5), Matrix("1", "rows", "0", 4, 4, output_bytes=9))


def test_parts_share_what_lies_between_columns_and_rows() -> None:
    wide = replace(WIDE, backward_bytes=40, backward_of=((0, 4), (1, 20)), copied_bytes=(0, 6))
    run = Run(2, 8, replace(FOOTPRINT, matrices=MATRICES))
    columns, rows, loss = held_by(strategy_of("tensor"), 1, run, (wide, DEEP, LOSS)).layers
    assert (columns.parameters, rows.parameters) == ((50,), (10, 2))
    assert (columns.kept_bytes, rows.kept_bytes) == (5, 50)
    # Of 40 bytes 10 are the gradient of what columns take in and 6 a copy of that; 20 and 4 are what they put out.
    assert columns.backward_bytes == 10 + 6 + 10 + 2 + 8 * 5
    assert rows.forward_bytes == 2 + 8 * 9
    assert loss == LOSS


@pytest.mark.parametrize(("devices", "gradients"), [(2, "anew"), (4, "stay")])
def test_one_group_adds_up_no_gradients(devices: int, gradients: str) -> None:
    more: dict[str, Any] = {"devices": devices, "footprint": replace(FOOTPRINT, matrices=MATRICES)}
    assert held("hybrid:tensor=2", **more).gradients == gradients
    assert held("hybrid:stages=2", **more).flat_bytes == (0 if gradients == "anew" else 100)


def test_shards_are_halves_and_a_layer_is_gathered_while_it_works() -> None:
    """`0` weighs 100, `1` 24 and stays gathered from forward to backward."""
    found = held("sharded")
    assert [layer.parameters for layer in found.layers] == [(50,), (10, 2), ()]
    assert peak_memory(found, "adam").optimizer == 2 * 62
    # In forward the piece that was gathered, and the weights that were copied from it.
    assert [layer.forward_bytes for layer in found.layers] == [1 + 2 * 100, 2 + 2 * 24, 24]
    # In backward the weights, half of the gradients beside the shards of them; while `1` works the piece of `0` comes,
    # and while `0` works the gradients of `1` are on their way.
    assert [layer.backward_bytes for layer in found.layers] == [5 + 100 + 50 + 24, 30 + 24 + 12 + 100, 6 + 24]


def test_a_unit_in_the_middle_has_its_weights_twice_or_its_gradients_and_those_around_it() -> None:
    """Two layers of one unit: the first in backward begins it, the second has all its gradients."""
    layers = (*(LayerMemory(name, (100,), 0, 0, 0) for name in ("0", "1.a", "1.b", "2")), LOSS)
    _, first, second, *_ = held_by(strategy_of("sharded"), 0, Run(4, 8, FOOTPRINT), layers).layers
    assert second.backward_bytes == 200 + 100 + max(100 + 75, 200)
    assert first.backward_bytes == 200 + 100 + 100 + 150


def test_weights_of_the_model_itself_stay_gathered() -> None:
    layers = (LayerMemory("embedding", (40,), 0, 0, 0), LayerMemory("blocks.0", (100,), 0, 0, 0), LOSS)
    own, block, loss = held_by(strategy_of("sharded"), 0, Run(2, 8, FOOTPRINT), layers).layers
    assert [own.forward_bytes, block.forward_bytes, loss.forward_bytes] == [40, 40 + 200, 40 + 100]
    assert own.backward_bytes == 40 + 20


def test_one_device_gathers_nothing_and_copies() -> None:
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


def test_profiled_peaks_are_moved_by_what_a_strategy_holds_more() -> None:
    measured = profile(5000, 6000)
    assert memory_bytes(measured, Costs(measured), strategy_of("single"), 15) == 5500
    assert memory_bytes(measured, Costs(measured), strategy_of("mirrored"), 15, 2) == 5500 + 1000


def test_without_peaks_memory_is_counted_from_the_layers() -> None:
    """Weights, Adam's two, the gradient; the batch, the layer's output, its gradient and the one it passes on."""
    counted = profile()
    assert memory_bytes(counted, Costs(counted), strategy_of("single"), 10) == 4000 + 40 + 100 + 100 + 40
