"""Verdicts on the study's machine: its two models, for which it says opposite things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalewise.advice.break_even import break_even
from scalewise.advice.given import published_profile
from scalewise.advice.rows import Question, Row, one_device_seconds, rows_of, strategy_text
from scalewise.advice.verdict import Verdict, verdict_of
from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.predict import Predictor
from scalewise.published.models import outlined_profile
from scalewise.published.stevens import stevens_profile
from scalewise.results.profile import ProfileDocument
from scalewise.results.units import seconds_text
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy

BOX = cluster_of("4x-gtx-1080-ti")
STRATEGIES = [strategy_of(text) for text in ("data-parallel:engine=threads", "mirrored")]
THREADS = STRATEGIES[0]


def rows(predictor: Predictor, strategies: Sequence[Strategy], devices: Sequence[int], batch: int) -> list[Row]:
    return rows_of(predictor, Question(strategies, devices, [batch]))[0]


def verdict(workload: str, batch: int, cluster: Cluster = BOX) -> Verdict:
    predictor = Predictor(stevens_profile(workload), cluster)
    return verdict_of(predictor, rows(predictor, STRATEGIES, [1, 2, 4], batch))


def loaded(profile: ProfileDocument, seconds_per_sample: float) -> ProfileDocument:
    steps = tuple(step.model_copy(update={"load": seconds_per_sample * step.batch}) for step in profile.steps)
    return profile.model_copy(update={"steps": steps})


def test_the_linear_model_stays_on_one_device_and_hears_why() -> None:
    said = verdict("linear", 100)
    assert (said.add_devices, said.bottleneck, said.best.prediction.devices) == (False, "network", 1)
    assert said.reason.startswith("Stay on one GTX 1080 Ti. At batch 100, linear on 4x-gtx-1080-ti is choked by the")
    assert "moves 46.2 MiB over the busiest link" in said.reason


def test_the_convolutional_model_gets_all_four() -> None:
    said = verdict("conv", 100)
    assert (said.add_devices, said.best.prediction.devices, said.best.name) == (True, 4, "mirrored")
    assert said.best.speedup == pytest.approx(3.05, rel=0.02)
    assert "3.05 times faster" in said.reason


def test_a_few_percent_are_no_reason_to_leave_torchs_own_way() -> None:
    predictor = Predictor(outlined_profile("ResNet-50", "A100-SXM4-80GB", {64: 0.1}), cluster_of("8x-a100-nvlink"))
    made = rows(predictor, [strategy_of("ring"), strategy_of("mirrored")], [8], 64)
    assert made[1].prediction.seconds < made[2].prediction.seconds < 1.05 * made[1].prediction.seconds
    assert verdict_of(predictor, made).best.name == "mirrored"


def test_a_few_percent_are_no_reason_for_twice_the_devices() -> None:
    """On 8 devices the step is launching, as on 4."""
    cluster = cluster_of("8x-v100-nvlink")
    predictor = Predictor(published_profile("ResNet-50", cluster.devices[0], (0.062, 32)), cluster)
    made = rows(predictor, [strategy_of("mirrored")], [2, 4, 8], 32)
    assert made[3].prediction.seconds < made[2].prediction.seconds < 1.05 * made[3].prediction.seconds
    assert verdict_of(predictor, made).best.prediction.devices == 4


def test_a_short_last_batch_that_costs_the_gain_is_told_so() -> None:
    """2,000 clips are four batches of 480 and one of 80."""
    reason = verdict("linear", 480).reason
    assert "ms an epoch where one takes" in reason
    assert "it is the last of an epoch, of 80 samples, that costs the gain" in reason
    assert "would be faster than one from" not in reason
    assert "last of an epoch" not in verdict("linear", 400).reason


def test_memory_of_weights_alone_is_no_promise_that_it_fits() -> None:
    cluster = cluster_of("4x-t4")
    for model, said in (("BERT base", True), ("ResNet-50", False)):
        predictor = Predictor(published_profile(model, cluster.devices[0], (0.3, 32)), cluster)
        made = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [4], 64))
        assert made.add_devices
        assert ("Whether it fits is not known" in made.reason) == said


def test_what_does_not_fit_one_device_must_be_spread() -> None:
    needed = Predictor(stevens_profile("conv"), BOX).predict(strategy_of("mirrored"), 4, 400).memory_bytes
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=1.1 * needed / 1e9),))
    said = verdict("conv", 400, small)
    assert said.add_devices
    assert said.best.speedup is None
    assert "does not fit into one" in said.reason
    assert f"takes {seconds_text(said.best.prediction.seconds)} a step" in said.reason


def test_what_would_not_fit_is_no_remedy_and_nothing_is_as_fast_as_what_does_not_run() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    needed = [predictor.predict(strategy_of("mirrored"), 4, batch).memory_bytes / 1e9 for batch in (400, 1600)]
    for memory_GB, larger in ((1.01 * needed[0], False), (1.01 * needed[1], True)):
        said = verdict("conv", 400, replace(BOX, devices=(replace(BOX.devices[0], memory_GB=memory_GB),)))
        assert (
            any("a batch of 1,600" in change.change and "acc" not in change.change for change in said.changes) is larger
        )
        assert {change.speedup is None for change in said.changes} == {not larger}


def test_one_device_that_has_no_room_for_a_larger_batch_is_compared_at_its_own() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    memory_GB = 1.1 * predictor.predict(Single(), 1, 400).memory_bytes / 1e9
    said = verdict("conv", 400, replace(BOX, devices=(replace(BOX.devices[0], memory_GB=memory_GB),)))
    [larger] = [change for change in said.changes if change.change.startswith("a batch of 1,600")]
    assert "one device as it is, which has no room for more" in larger.change
    spread = predictor.simulate(strategy_of("mirrored"), 4, 1600).step_seconds
    assert larger.speedup == pytest.approx(4 * predictor.simulate(Single(), 1, 400).step_seconds / spread)


def test_at_the_break_even_bandwidth_both_take_as_long() -> None:
    profile = stevens_profile("linear")
    mirrored = strategy_of("mirrored")
    even = break_even(Predictor(profile, BOX), mirrored, 2, 100).bandwidth_GBps
    assert even is not None
    there = Predictor(profile, BOX.with_link("devices", even))
    assert there.simulate(mirrored, 2, 100).step_seconds == pytest.approx(
        there.simulate(Single(), 1, 100).step_seconds, rel=0.03
    )


@pytest.mark.parametrize(("workload", "devices", "shares"), [("linear", 2, 1), ("conv", 4, 1), ("conv", 4, 4)])
def test_the_break_even_batch_is_the_first_that_is_faster(workload: str, devices: int, shares: int) -> None:
    predictor = Predictor(stevens_profile(workload), BOX)
    batch = break_even(predictor, strategy_of("mirrored"), devices, 100, shares).batch
    assert batch is not None

    def gain(size: int) -> float:
        spread = predictor.simulate(strategy_of("mirrored"), devices, size).step_seconds
        return one_device_seconds(predictor, size, shares) - spread

    assert gain(batch) > 0 > gain(batch - 1)


def test_where_one_device_only_loads_no_link_helps() -> None:
    """torch.nn.DataParallel loads through one process, so a step without compute cannot be shortened."""
    profile = stevens_profile("linear")
    idle = profile.model_copy(
        update={"steps": tuple(step.model_copy(update={"forward": 0.0, "backward": 0.0}) for step in profile.steps)}
    )
    even = break_even(Predictor(idle, BOX), THREADS, 2, 100)
    assert (even.batch, even.bandwidth_GBps) == (None, None)


def test_changes_are_priced_and_the_best_comes_first() -> None:
    changes = verdict("linear", 100).changes
    speedups = [change.speedup or 0.0 for change in changes]
    assert speedups == sorted(speedups, reverse=True)
    fp16 = next(change for change in changes if "fp16" in change.change)
    assert not fp16.exact
    plain = rows(Predictor(stevens_profile("linear"), BOX), [strategy_of("mirrored")], [2], 100)[1].speedup
    assert plain is not None
    assert (fp16.speedup or 0.0) > 1.3 * plain


def test_a_better_strategy_that_nobody_asked_about_is_named() -> None:
    predictor = Predictor(stevens_profile("linear"), BOX)
    made = rows(predictor, [strategy_of("parameter-server")], [1, 4], 100)
    [better] = [change for change in verdict_of(predictor, made).changes if change.change.startswith("the strategy ")]
    named = strategy_of(better.change.removeprefix("the strategy "))
    assert named.exact
    assert better.seconds == pytest.approx(predictor.simulate(named, 4, 100).step_seconds)
    assert better.seconds <= predictor.simulate(strategy_of("ring"), 4, 100).step_seconds < made[1].prediction.seconds


def test_one_device_stays_among_what_was_asked_about_and_hears_what_would_gain() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    said = verdict_of(predictor, rows(predictor, [strategy_of("layers")], [1, 4], 100))
    [better] = [change for change in said.changes if change.strategy]
    assert not said.add_devices
    told = f"{better.strategy}, which was not asked about, would take {seconds_text(better.seconds)} a step there: "
    assert f"{told}{better.speedup:.2f} times faster than one." in said.reason
    assert "not asked about" not in verdict("linear", 100).reason


def test_where_loading_counts_workers_are_priced_for_one_device_and_for_several() -> None:
    said = verdict("linear", 100)
    one, several = [change for change in said.changes if "loading workers" in change.change]
    profile = loaded(stevens_profile("linear"), 0.0)
    computing = Predictor(profile, BOX)
    assert one.change.startswith("one device with 4 loading workers")
    assert one.seconds == pytest.approx(computing.simulate(Single(), 1, 100).step_seconds)
    assert several.seconds == pytest.approx(computing.simulate(strategy_of("mirrored"), 2, 100).step_seconds)
    assert f"{one.seconds / several.seconds:.2f} times one device with as many" in several.change
    assert said.reason.endswith("One with 4 loading workers (--load stream:workers=4) would take 3.99 ms a step.")


def test_loading_workers_come_first_where_they_bring_one_device_as_far_as_several() -> None:
    """A second to load a clip: two processes load twice as much as one, but its workers four times as much."""
    predictor = Predictor(loaded(stevens_profile("linear"), 1.0), BOX)
    said = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [2], 100))
    assert said.add_devices
    assert not said.reason.startswith("Load beside compute")
    heavy = Predictor(loaded(stevens_profile("linear"), 1e-3), BOX)
    said = verdict_of(heavy, rows(heavy, [strategy_of("mirrored")], [2], 100))
    assert said.reason.startswith("Load beside compute before you add devices: one GTX 1080 Ti with 4 loading workers")


def test_devices_that_work_in_turn_do_not_hide_a_choke() -> None:
    """`layers` on two loses next to nothing to the network, and can gain nothing: it explains nothing either."""
    predictor = Predictor(stevens_profile("linear"), BOX)
    made = rows(predictor, [*STRATEGIES, strategy_of("layers")], [1, 2, 4], 100)
    assert min(made[1:], key=lambda row: row.prediction.seconds).name == "layers"
    said = verdict_of(predictor, made)
    assert (said.add_devices, said.bottleneck) == (False, "network")
    assert "The best that shares out the batch, mirrored on 2 devices, takes" in said.reason
    assert said.break_even == break_even(predictor, strategy_of("mirrored"), 2, 100)
    assert said.break_even.bandwidth_GBps is not None


def test_what_may_as_well_be_slower_is_only_probably_advised() -> None:
    """One figure at batch 64 says little of 16 on each of four: a launch-bound device would take as long for them."""
    assert verdict("conv", 100).sure
    predictor = Predictor(outlined_profile("ResNet-50", "Tesla T4", {64: 0.4}), cluster_of("4x-t4"))
    made = rows(predictor, [strategy_of("mirrored")], [4], 64)
    assert made[1].speedup is not None
    assert made[1].speedup * made[1].prediction.seconds / made[1].prediction.high < 1 < made[1].speedup
    said = verdict_of(predictor, made)
    assert (said.add_devices, said.sure) == (True, False)
    assert said.reason.startswith("Probably use mirrored on 4 x Tesla T4: at batch 64 ")
    assert "it cannot be told for sure" in said.reason
    assert "To be sure, time one device at batch 16, which was not profiled" in said.reason


def test_one_device_that_is_a_guess_is_no_sure_ground_to_leave_it() -> None:
    """Its own figure is of batch 32, where launching may be all of it: 128 may take no longer."""
    profile = outlined_profile("ResNet-50", "Tesla T4", {32: 0.1}).model_copy(update={"least_seconds": 0.1})
    predictor = Predictor(profile, cluster_of("4x-t4"))
    made, _ = rows_of(predictor, Question([strategy_of("mirrored")], [4], [128], epoch_known=False))
    assert made[1].prediction.known == "measured"
    assert (made[1].speedup or 0.0) * made[1].prediction.seconds / made[1].prediction.high > 1
    said = verdict_of(predictor, made)
    assert (said.add_devices, said.sure) == (True, False)
    assert "To be sure, time one device at batch 128, which was not profiled" in said.reason


def test_devices_of_two_kinds_are_both_named_and_hold_what_they_themselves_have_room_for() -> None:
    big, small = replace(BOX.devices[0], count=2), replace(BOX.devices[0], name="GTX 1060", count=2, memory_GB=0.1)
    said = verdict("conv", 400, replace(BOX, devices=(big, replace(small, memory_GB=6))))
    assert said.reason.startswith("Use mirrored on 2 x GTX 1080 Ti and 2 x GTX 1060: ")
    made = rows(Predictor(stevens_profile("conv"), replace(BOX, devices=(big, small))), STRATEGIES[1:], [2, 4], 400)
    assert [row.prediction.fits for row in made] == [True, True, False]


def test_one_device_that_has_room_where_a_root_has_not_hears_so() -> None:
    """A root keeps everyone's gradients."""
    cluster = cluster_of("1 x t4, 64 hosts, 10gbe")
    predictor = Predictor(outlined_profile("VGG16", "Tesla T4", {32: 0.3}), cluster)
    said = verdict_of(predictor, rows(predictor, [strategy_of("data-parallel")], [64], 32))
    assert not said.add_devices
    assert "VGG16 fits one, which takes 300 ms a step, but data-parallel on 64 devices needs " in said.reason
    assert "too large" not in said.reason


def test_what_fits_nowhere_is_said() -> None:
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=0.01),))
    said = verdict("conv", 400, small)
    assert (said.add_devices, said.bottleneck) == (False, "memory")
    assert said.reason.startswith("Nothing fits: conv at batch 400 needs ")
    assert said.reason.endswith("has 9.5 MiB.")  # not for a single sample either


def test_what_fits_with_fewer_samples_is_told() -> None:
    cluster = cluster_of("4x-gtx-1080-ti")
    predictor = Predictor(published_profile("ResNet-50", cluster.devices[0], (0.3, 32)), cluster)
    said = verdict_of(predictor, rows(predictor, [strategy_of("mirrored")], [2, 4], 512)).reason
    assert said.endswith("A batch of 256 would fit, under mirrored on 4 devices.")
    assert predictor.predict(strategy_of("mirrored"), 4, 256).fits


def test_the_batch_of_each_device_is_compared_with_one_that_has_as_many() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    made, _ = rows_of(predictor, Question([strategy_of("mirrored")], [1, 2, 4], [], batch_per_device=50))
    assert [(row.prediction.devices, row.prediction.batch) for row in made] == [(1, 50), (2, 100), (4, 200)]
    alone, *_, four = made
    assert four.gain == pytest.approx(4 * alone.prediction.seconds / four.prediction.seconds)
    said = verdict_of(predictor, made)
    assert said.best is four
    rates = [row.prediction.batch / row.prediction.seconds for row in (four, alone)]
    layers, _ = rows_of(predictor, Question([strategy_of("layers")], [2], [], batch_per_device=50))
    assert layers[1].prediction.batch == 50  # which both see
    assert layers[1].gain == pytest.approx(alone.prediction.seconds / layers[1].prediction.seconds)
    assert f"it trains {rates[0]:,.0f} samples/s where one device trains {rates[1]:,.0f} samples/s" in said.reason


def test_rows_compare_with_one_device_at_the_same_batch_and_at_the_same_share() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    alone, spread = rows(predictor, [THREADS], [4], 100)
    assert spread.speedup is not None
    assert spread.speedup == pytest.approx(alone.prediction.epoch_seconds / spread.prediction.epoch_seconds)
    grown = predictor.simulate(THREADS, 4, 400).step_seconds
    assert spread.speedup_per_device_batch == pytest.approx(4 * alone.prediction.seconds / grown)
    assert spread.efficiency == pytest.approx(spread.speedup / 4)


def test_a_strategy_is_named_with_what_differs_from_its_own_choice() -> None:
    assert strategy_text(strategy_of("mirrored:bucket_MB=10")) == "mirrored:bucket_MB=10.0"
    assert strategy_text(strategy_of("mirrored")) == "mirrored"


def test_an_epoch_costs_the_hosts_in_use() -> None:
    cluster = replace(cluster_of("4 x gtx-1080-ti, 2 hosts, 10gbe"), price_per_hour=36.0)
    predictor = Predictor(stevens_profile("conv"), cluster)
    made = rows(predictor, [strategy_of("mirrored")], [4, 8], 80)
    for row, hosts in zip(made, (1, 1, 2), strict=True):
        assert row.cost_per_epoch == pytest.approx(0.01 * hosts / 2 * row.prediction.epoch_seconds)


def test_without_an_epoch_steps_are_compared_and_paid_for() -> None:
    cluster = replace(BOX, price_per_hour=36.0)
    predictor = Predictor(stevens_profile("conv"), cluster)
    made, _ = rows_of(predictor, Question([strategy_of("mirrored")], [4], [100], epoch_known=False))
    alone, spread = made
    assert (spread.epoch_seconds, spread.cost_per_epoch) == (None, None)
    assert spread.cost_per_1000_steps == pytest.approx(10 * spread.prediction.seconds)
    assert spread.speedup == pytest.approx(alone.prediction.seconds / spread.prediction.seconds)
    assert "at batch 100 a step takes" in verdict_of(predictor, made).reason


def test_a_hybrid_of_one_group_is_not_told_twice() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    pipeline, hybrid = strategy_of("pipeline"), strategy_of("hybrid:stages=2")
    alone, twin = (rows(predictor, [strategy], [2], 100)[1].prediction.seconds for strategy in (pipeline, hybrid))
    assert alone == pytest.approx(twin)
    made, left_out = rows_of(predictor, Question([pipeline, hybrid], [2, 4], [100]))
    assert [(row.name, row.prediction.devices) for row in made[1:]] == [
        ("pipeline", 2),
        ("pipeline", 4),
        ("hybrid:stages=2", 4),
    ]
    assert [(each.strategy, each.devices, each.why) for each in left_out] == [
        ("hybrid:stages=2", 2, "one group is pipeline")
    ]
