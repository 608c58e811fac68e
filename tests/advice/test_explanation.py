"""Verdicts, mostly on the two models of the study."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalewise.advice.advise import advise
from scalewise.advice.alternatives import break_even
from scalewise.advice.explanation import Verdict, verdict_of
from scalewise.advice.one_device import published_profile
from scalewise.advice.rows import Question, Row, one_device_seconds, rows_of
from scalewise.core.units import seconds_text
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.predict.calibration import scaled
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.published.tables import outlined_profile
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import strategy_of, strategy_text
from scalewise.strategies.single import Single

BOX = cluster_of("4x-gtx-1080-ti")
STRATEGIES = [strategy_of(text) for text in ("data-parallel:engine=threads", "mirrored")]
THREADS = STRATEGIES[0]


def rows(predictor: Predictor, strategies: Sequence[Strategy], devices: Sequence[int], batch: int) -> list[Row]:
    return rows_of(predictor, Question(strategies, devices, [batch]))[0]


def verdict(workload: str, batch: int, cluster: Cluster = BOX) -> Verdict:
    predictor = Predictor(stevens_profile(workload), cluster)
    return verdict_of(predictor, rows(predictor, STRATEGIES, [1, 2, 4], batch))


def sectioned(workload: str) -> ProfileDocument:
    """Return the study's profile as eight layers that send 4 kB to the next."""
    profile = stevens_profile(workload)
    layer = profile.layers[0]
    layers = tuple(layer.model_copy(update={"name": f"layer{at}", "activation_bytes": 4096}) for at in range(8))
    return profile.model_copy(update={"layers": layers, "footprint": {}})


def loaded(profile: ProfileDocument, seconds_per_sample: float) -> ProfileDocument:
    steps = tuple(step.model_copy(update={"load": seconds_per_sample * step.batch}) for step in profile.steps)
    return profile.model_copy(update={"steps": steps})


@pytest.mark.parametrize(
    ("strategy", "least"), [("pipeline:microbatches=4", 4), ("hybrid:stages=2,microbatches=16", 32)]
)
def test_break_even_skips_batches_that_the_strategy_refuses(strategy: str, least: int) -> None:
    links = cluster_of("8x-a100-nvlink").links
    fast = replace(BOX, links=links)
    predictor = Predictor(sectioned("conv"), fast)
    even = break_even(predictor, strategy_of(strategy), 4, 256)
    assert even.batch is not None
    assert even.batch >= least


def test_a_verdict_on_more_micro_batches_than_devices() -> None:
    predictor = Predictor(sectioned("linear"), BOX)
    result = verdict_of(predictor, rows(predictor, [strategy_of("pipeline:microbatches=4")], [2], 64))
    assert result.best.prediction.devices == 1


def test_the_last_batch_of_an_epoch_may_be_smaller_than_the_micro_batches() -> None:
    """The predictor pads the last batch, as training does."""
    document = sectioned("linear").model_copy(update={"samples_per_epoch": 17})
    hybrid = strategy_of("hybrid:stages=2,microbatches=4")
    prediction = Predictor(document, BOX).predict(hybrid, 4, 16)
    assert prediction.epoch_seconds == pytest.approx(2 * prediction.seconds)


@pytest.mark.parametrize("strategy", ["layers:cut={}", "pipeline:microbatches=120", "pipeline:cut={},microbatches=24"])
@pytest.mark.slow
def test_a_verdict_on_more_stages_than_are_planned_one_by_one(strategy: str) -> None:
    """The verdict plans all stages, because a given cut is valid for one number of stages only."""
    cluster = cluster_of("8 x a100-nvlink, 3 hosts, 1gbe")
    profile = outlined_profile("ResNet-50", cluster.devices[0].name, {128: 0.1})
    layers = tuple(layer.model_copy(update={"activation_bytes": 10**7}) for layer in profile.layers[:1] * 24)
    layers = tuple(layer.model_copy(update={"name": f"block{at}"}) for at, layer in enumerate(layers))
    predictor = Predictor(profile.model_copy(update={"layers": layers}), cluster)
    chosen = strategy_of(strategy.format("+".join(f"block{at}" for at in range(1, 24))))
    result = verdict_of(predictor, rows(predictor, [chosen], [24], 128))
    assert result.bottleneck == "network"


def test_the_linear_model_stays_on_one_device() -> None:
    result = verdict("linear", 100)
    assert (result.add_devices, result.bottleneck, result.best.prediction.devices) == (False, "network", 1)
    assert result.reason.startswith("Stay on one GTX 1080 Ti")
    assert "communication-bound (network choke): each sends 46.2 MiB over the busiest link" in result.reason


def test_the_convolutional_model_uses_four_devices() -> None:
    result = verdict("conv", 100)
    assert (result.add_devices, result.best.prediction.devices, result.best.name) == (True, 4, "mirrored")
    assert result.best.speedup == pytest.approx(3.05, rel=0.02)
    assert "3.05 times as fast" in result.reason


def test_torchs_own_strategy_is_preferred_within_a_few_percent() -> None:
    predictor = Predictor(outlined_profile("ResNet-50", "A100-SXM4-80GB", {64: 0.1}), cluster_of("8x-a100-nvlink"))
    table = rows(predictor, [strategy_of("ring"), strategy_of("mirrored")], [8], 64)
    assert table[1].prediction.seconds < table[2].prediction.seconds < 1.05 * table[1].prediction.seconds
    assert verdict_of(predictor, table).best.name == "mirrored"


def test_fewer_devices_are_preferred_within_a_few_percent() -> None:
    """Kernel launches limit the step on 8 devices as on 4."""
    cluster = cluster_of("8x-v100-nvlink")
    predictor = Predictor(published_profile("ResNet-50", cluster.devices[0], (0.062, 32)), cluster)
    table = rows(predictor, [strategy_of("mirrored")], [2, 4, 8], 32)
    assert table[3].prediction.seconds < table[2].prediction.seconds < 1.05 * table[3].prediction.seconds
    assert verdict_of(predictor, table).best.prediction.devices == 4


def test_a_short_last_batch_is_named_as_the_reason() -> None:
    """2,000 clips are four batches of 480 and one of 80."""
    reason = verdict("linear", 480).reason
    assert "the last batch of an epoch has only 80 samples: use a batch that divides 2,000" in reason
    assert "faster than one from" not in reason
    assert "last batch of an epoch" not in verdict("linear", 400).reason


def test_unknown_activations_make_the_memory_uncertain() -> None:
    cluster = cluster_of("4x-t4")
    for model, unknown in (("BERT base", True), ("ResNet-50", False)):
        predictor = Predictor(published_profile(model, cluster.devices[0], (0.3, 32)), cluster)
        result = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [4], 64))
        assert result.add_devices
        assert ("whether it fits in memory is unknown" in result.reason) == unknown


def test_devices_are_added_if_one_does_not_fit() -> None:
    needed = Predictor(stevens_profile("conv"), BOX).predict(strategy_of("mirrored"), 4, 400).memory_bytes
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=1.1 * needed / 1e9),))
    result = verdict("conv", 400, small)
    assert result.add_devices
    assert result.best.speedup is None
    assert "does not fit one device" in result.reason
    assert f"takes {seconds_text(result.best.prediction.seconds)} per step" in result.reason


def test_changes_that_do_not_fit_are_not_offered() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    needed = [predictor.predict(strategy_of("mirrored"), 4, batch).memory_bytes / 1e9 for batch in (400, 1600)]
    for memory_GB, larger in ((1.01 * needed[0], False), (1.01 * needed[1], True)):
        result = verdict("conv", 400, replace(BOX, devices=(replace(BOX.devices[0], memory_GB=memory_GB),)))
        assert (
            any("a batch of 1,600" in change.change and "acc" not in change.change for change in result.changes)
            is larger
        )
        assert {change.speedup is None for change in result.changes} == {not larger}


def test_a_larger_batch_is_compared_with_the_largest_that_fits_one_device() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    memory_GB = 1.1 * predictor.predict(Single(), 1, 400).memory_bytes / 1e9
    result = verdict("conv", 400, replace(BOX, devices=(replace(BOX.devices[0], memory_GB=memory_GB),)))
    [larger] = [change for change in result.changes if change.change.startswith("a batch of 1,600")]
    assert "compared with one device at batch 400, because 1,600 samples do not fit" in larger.change
    spread = predictor.simulate(strategy_of("mirrored"), 4, 1600).step_seconds
    assert larger.speedup == pytest.approx(4 * predictor.simulate(Single(), 1, 400).step_seconds / spread)


def test_step_times_are_equal_at_the_break_even_bandwidth() -> None:
    profile = stevens_profile("linear")
    mirrored = strategy_of("mirrored")
    even = break_even(Predictor(profile, BOX), mirrored, 2, 100).bandwidth_GBps
    assert even is not None
    there = Predictor(profile, scaled(BOX, "devices", even / BOX.links[0].GBps))
    assert there.simulate(mirrored, 2, 100).step_seconds == pytest.approx(
        there.simulate(Single(), 1, 100).step_seconds, rel=0.03
    )


@pytest.mark.parametrize(("workload", "devices", "shares"), [("linear", 2, 1), ("conv", 4, 1), ("conv", 4, 4)])
def test_the_break_even_batch_is_the_smallest_that_is_faster(workload: str, devices: int, shares: int) -> None:
    predictor = Predictor(stevens_profile(workload), BOX)
    batch = break_even(predictor, strategy_of("mirrored"), devices, 100, shares).batch
    assert batch is not None

    def gain(size: int) -> float:
        spread = predictor.simulate(strategy_of("mirrored"), devices, size).step_seconds
        return one_device_seconds(predictor, size, shares) - spread

    assert gain(batch) > 0 > gain(batch - 1)


def test_a_model_that_only_loads_has_no_break_even() -> None:
    """torch.nn.DataParallel loads through one process, so a step without compute cannot be shortened."""
    profile = stevens_profile("linear")
    idle = profile.model_copy(
        update={"steps": tuple(step.model_copy(update={"forward": 0.0, "backward": 0.0}) for step in profile.steps)}
    )
    even = break_even(Predictor(idle, BOX), THREADS, 2, 100)
    assert (even.batch, even.bandwidth_GBps) == (None, None)


def test_changes_are_sorted_by_speedup() -> None:
    changes = verdict("linear", 100).changes
    speedups = [change.speedup or 0.0 for change in changes]
    assert speedups == sorted(speedups, reverse=True)
    fp16 = next(change for change in changes if "fp16" in change.change)
    assert not fp16.exact
    plain = rows(Predictor(stevens_profile("linear"), BOX), [strategy_of("mirrored")], [2], 100)[1].speedup
    assert plain is not None
    assert (fp16.speedup or 0.0) > 1.3 * plain


def test_a_faster_strategy_outside_the_table_is_named() -> None:
    predictor = Predictor(stevens_profile("linear"), BOX)
    table = rows(predictor, [strategy_of("parameter-server")], [1, 4], 100)
    [better] = [
        change for change in verdict_of(predictor, table).changes if change.change.startswith("use the strategy ")
    ]
    named = strategy_of(better.change.removeprefix("use the strategy "))
    assert named.exact
    assert better.seconds == pytest.approx(predictor.simulate(named, 4, 100).step_seconds)
    assert better.seconds <= predictor.simulate(strategy_of("ring"), 4, 100).step_seconds < table[1].prediction.seconds


def test_the_verdict_names_a_faster_strategy_outside_the_table() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    result = verdict_of(predictor, rows(predictor, [strategy_of("layers")], [1, 4], 100))
    [better] = [change for change in result.changes if change.strategy]
    assert not result.add_devices
    assert f"{better.strategy}, which is not in the table, is predicted to take" in result.reason
    assert result.reason.endswith(f"{better.speedup:.2f} times as fast as one.")
    assert "not in the table" not in verdict("linear", 100).reason


def test_loading_workers_are_predicted_for_one_device_and_for_several() -> None:
    result = verdict("linear", 100)
    one, several = [change for change in result.changes if "loading workers" in change.change]
    profile = loaded(stevens_profile("linear"), 0.0)
    computing = Predictor(profile, BOX)
    assert one.change.startswith("4 loading workers on one device")
    assert one.seconds == pytest.approx(computing.simulate(Single(), 1, 100).step_seconds)
    assert several.seconds == pytest.approx(computing.simulate(strategy_of("mirrored"), 2, 100).step_seconds)
    assert f"{one.seconds / several.seconds:.2f} times as fast as one device with them" in several.change
    assert (
        "and load samples with 4 workers (--load stream:workers=4): they shorten the step from 13.2 ms to 3.99 ms."
        in result.reason
    )


def test_loading_workers_come_first_if_they_make_one_device_as_fast() -> None:
    """With a second of loading per clip, two processes load twice as fast as one, four workers four times as fast."""
    predictor = Predictor(loaded(stevens_profile("linear"), 1.0), BOX)
    result = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [2], 100))
    assert result.add_devices
    assert not result.reason.startswith("Before you add devices")
    heavy = Predictor(loaded(stevens_profile("linear"), 1e-3), BOX)
    result = verdict_of(heavy, rows(heavy, [strategy_of("mirrored")], [2], 100))
    assert result.reason.startswith(
        "Before you add devices, load with 4 workers (--load stream:workers=4): one GTX 1080 Ti"
    )


def test_a_choke_is_explained_by_a_strategy_that_splits_the_batch() -> None:
    """`layers` is nearly as fast as one device, but can never be faster, so it does not explain the choke."""
    predictor = Predictor(stevens_profile("linear"), BOX)
    table = rows(predictor, [*STRATEGIES, strategy_of("layers")], [1, 2, 4], 100)
    assert min(table[1:], key=lambda row: row.prediction.seconds).name == "layers"
    result = verdict_of(predictor, table)
    assert (result.add_devices, result.bottleneck) == (False, "network")
    assert "29.1 ms (21.7-36.6 ms) with mirrored on 2." in result.reason
    assert result.break_even == break_even(predictor, strategy_of("mirrored"), 2, 100)
    assert result.break_even.bandwidth_GBps is not None


def test_advice_is_uncertain_if_the_interval_includes_no_speedup() -> None:
    """A step time at batch 64 is little evidence for batch 16: kernel launches could limit both."""
    assert verdict("conv", 100).sure
    predictor = Predictor(outlined_profile("ResNet-50", "Tesla T4", {64: 0.4}), cluster_of("4x-t4"))
    table = rows(predictor, [strategy_of("mirrored")], [4], 64)
    assert table[1].speedup is not None
    assert table[1].speedup * table[1].prediction.seconds / table[1].prediction.high < 1 < table[1].speedup
    result = verdict_of(predictor, table)
    assert (result.add_devices, result.sure) == (True, False)
    assert result.reason.startswith(
        "Probably use mirrored on 4 x Tesla T4 (uncertain: the interval of the speed-up includes 1)."
    )
    assert "To be certain, profile one device at batch 16, which was not measured" in result.reason


def test_an_extrapolated_single_device_makes_advice_uncertain() -> None:
    """A step time at batch 32 is little evidence for batch 128: kernel launches could limit both."""
    profile = outlined_profile("ResNet-50", "Tesla T4", {32: 0.1}).model_copy(update={"least_seconds": 0.1})
    predictor = Predictor(profile, cluster_of("4x-t4"))
    table, _ = rows_of(predictor, Question([strategy_of("mirrored")], [4], [128], epoch_known=False))
    assert table[1].prediction.known == "measured"
    assert (table[1].speedup or 0.0) * table[1].prediction.seconds / table[1].prediction.high > 1
    result = verdict_of(predictor, table)
    assert (result.add_devices, result.sure) == (True, False)
    assert "To be certain, profile one device at batch 128, which was not measured" in result.reason


def test_devices_of_two_kinds_are_both_named_and_the_smaller_memory_counts() -> None:
    big, small = replace(BOX.devices[0], count=2), replace(BOX.devices[0], name="GTX 1060", count=2, memory_GB=0.1)
    result = verdict("conv", 400, replace(BOX, devices=(big, replace(small, memory_GB=6))))
    assert result.reason.startswith("Use mirrored on 2 x GTX 1080 Ti and 2 x GTX 1060. ")
    table = rows(Predictor(stevens_profile("conv"), replace(BOX, devices=(big, small))), STRATEGIES[1:], [2, 4], 400)
    assert [row.prediction.fits for row in table] == [True, True, False]


def test_one_device_may_fit_where_a_root_device_does_not() -> None:
    """The root device holds the gradients of all devices."""
    cluster = cluster_of("1 x t4, 64 hosts, 10gbe")
    predictor = Predictor(outlined_profile("VGG16", "Tesla T4", {32: 0.3}), cluster)
    result = verdict_of(predictor, rows(predictor, [strategy_of("data-parallel")], [64], 32))
    assert not result.add_devices
    assert "VGG16 fits one device and takes 300 ms per step, but data-parallel on 64 devices needs " in result.reason
    assert "too large" not in result.reason


def test_nothing_fits() -> None:
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=0.01),))
    result = verdict("conv", 400, small)
    assert (result.add_devices, result.bottleneck) == (False, "memory")
    assert result.reason.startswith("Nothing fits: conv at batch 400 needs at least ")
    assert result.reason.endswith("has 0.01 GB.")  # not for a single sample either


def test_a_smaller_batch_that_fits_is_offered() -> None:
    cluster = cluster_of("4x-gtx-1080-ti")
    predictor = Predictor(published_profile("ResNet-50", cluster.devices[0], (0.3, 32)), cluster)
    result = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [2, 4], 512)).reason
    assert result.endswith("A batch of 256 would fit with mirrored on 4 devices.")
    assert predictor.predict(strategy_of("mirrored"), 4, 256).fits


def test_a_fixed_batch_per_device_is_compared_by_throughput() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    table, _ = rows_of(predictor, Question([strategy_of("mirrored")], [1, 2, 4], [], batch_per_device=50))
    assert [(row.prediction.devices, row.prediction.batch) for row in table] == [(1, 50), (2, 100), (4, 200)]
    alone, *_, four = table
    assert four.gain == pytest.approx(4 * alone.prediction.seconds / four.prediction.seconds)
    result = verdict_of(predictor, table)
    assert result.best is four
    rates = [row.prediction.batch / row.prediction.seconds for row in (four, alone)]
    layers, _ = rows_of(predictor, Question([strategy_of("layers")], [2], [], batch_per_device=50))
    assert layers[1].prediction.batch == 50  # which both see
    assert layers[1].gain == pytest.approx(alone.prediction.seconds / layers[1].prediction.seconds)
    assert f"it trains {rates[0]:,.0f} samples/s instead of {rates[1]:,.0f} samples/s on one device" in result.reason


def test_rows_have_strong_and_weak_scaling() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    alone, spread = rows(predictor, [THREADS], [4], 100)
    assert spread.speedup is not None
    assert spread.speedup == pytest.approx(alone.prediction.epoch_seconds / spread.prediction.epoch_seconds)
    grown = predictor.simulate(THREADS, 4, 400).step_seconds
    assert spread.speedup_per_device_batch == pytest.approx(4 * alone.prediction.seconds / grown)
    assert spread.efficiency == pytest.approx(spread.speedup / 4)


def test_a_strategy_is_named_with_its_non_default_options() -> None:
    assert strategy_text(strategy_of("mirrored:bucket_MB=10")) == "mirrored:bucket_MB=10.0"
    assert strategy_text(strategy_of("mirrored")) == "mirrored"


def test_the_cost_of_an_epoch_is_that_of_the_hosts_in_use() -> None:
    cluster = replace(cluster_of("4 x gtx-1080-ti, 2 hosts, 10gbe"), price_per_hour=36.0)
    predictor = Predictor(stevens_profile("conv"), cluster)
    table = rows(predictor, [strategy_of("mirrored")], [4, 8], 80)
    for row, hosts in zip(table, (1, 1, 2), strict=True):
        assert row.cost_per_epoch == pytest.approx(0.01 * hosts / 2 * row.prediction.epoch_seconds)


def test_steps_are_compared_if_the_epoch_is_unknown() -> None:
    cluster = replace(BOX, price_per_hour=36.0)
    predictor = Predictor(stevens_profile("conv"), cluster)
    table, _ = rows_of(predictor, Question([strategy_of("mirrored")], [4], [100], epoch_known=False))
    alone, spread = table
    assert (spread.epoch_seconds, spread.cost_per_epoch) == (None, None)
    assert spread.cost_per_1000_steps == pytest.approx(10 * spread.prediction.seconds)
    assert spread.speedup == pytest.approx(alone.prediction.seconds / spread.prediction.seconds)
    assert "At batch 100 a step takes" in verdict_of(predictor, table).reason


def test_a_hybrid_of_one_group_is_omitted() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    pipeline, hybrid = strategy_of("pipeline"), strategy_of("hybrid:stages=2")
    alone, twin = (rows(predictor, [strategy], [2], 100)[1].prediction.seconds for strategy in (pipeline, hybrid))
    assert alone == pytest.approx(twin)
    table, omitted = rows_of(predictor, Question([pipeline, hybrid], [2, 4], [100]))
    assert [(row.name, row.prediction.devices) for row in table[1:]] == [
        ("pipeline", 2),
        ("pipeline", 4),
        ("hybrid:stages=2", 4),
    ]
    assert [(omission.strategy, omission.devices, omission.problem) for omission in omitted] == [
        ("hybrid:stages=2", 2, "with one group it equals pipeline")
    ]


@pytest.mark.parametrize(
    ("workload", "batch"), [("linear", 100), ("linear", 480), ("linear", 600), ("conv", 10), ("conv", 100)]
)
def test_a_verdict_has_at_most_four_sentences(workload: str, batch: int) -> None:
    assert 1 <= sentences(verdict(workload, batch).reason) <= 4


def test_an_uncertain_verdict_with_loading_workers_has_at_most_four_sentences() -> None:
    predictor = Predictor(loaded(outlined_profile("ResNet-50", "Tesla T4", {64: 0.4}), 1e-2), cluster_of("4x-t4"))
    result = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [4], 64))
    assert result.add_devices
    assert 1 <= sentences(result.reason) <= 4


def sentences(text: str) -> int:
    return len(re.findall(r"\.(?: |$)", text))


def test_the_speedup_of_predictions_from_a_specification_is_narrower_than_their_steps() -> None:
    advice = advise("conv", cluster="4x-t4", batch=70, strategy=["mirrored"])
    prediction = advice.verdict.best.prediction
    low, high = map(float, re.findall(r"90% interval (\S+) to (\S+)\)", advice.verdict.reason)[0])
    assert prediction.high / prediction.low > 1.2 * high / low
    assert high / low < 1.5
    assert high < 4.5  # four devices


def test_accumulation_is_compared_with_one_device_that_accumulates() -> None:
    """One device saves three of four updates, too, so accumulation gains no more than four devices can."""
    advice = advise("linear", cluster="4x-t4", batch=64, strategy=["tensor"])
    accumulated = next(change for change in advice.verdict.changes if change.change.startswith("accumulate"))
    assert (accumulated.speedup or 9.0) < 4


def test_loading_workers_are_not_advised_on_cpu_cores() -> None:
    cluster = replace(BOX, backend="gloo", devices=(replace(BOX.devices[0], peak_TFLOPS=0.05),))
    predictor = Predictor(loaded(stevens_profile("linear"), 1e-3), cluster)
    result = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [2], 100))
    assert not cluster.has_gpus
    assert not any("loading workers" in change.change for change in result.changes)
    assert "workers" not in result.reason
