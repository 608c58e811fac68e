"""Verdicts on the study's machine: its two models, for which it says opposite things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.advice.break_even import break_even
from scalewise.advice.rows import rows_of, strategy_text
from scalewise.advice.verdict import Verdict, verdict_of
from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.predict import Predictor
from scalewise.published.models import outlined_profile
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.single import Single

BOX = cluster_of("4x-gtx-1080-ti")
STRATEGIES = [strategy_of(text) for text in ("data-parallel:engine=threads", "mirrored")]
THREADS = STRATEGIES[0]


def verdict(workload: str, batch: int, cluster: Cluster = BOX) -> Verdict:
    predictor = Predictor(stevens_profile(workload), cluster)
    return verdict_of(predictor, rows_of(predictor, STRATEGIES, [1, 2, 4], [batch]))


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
    rows = rows_of(predictor, [strategy_of("ring"), strategy_of("mirrored")], [8], [64])
    assert rows[1].prediction.seconds < rows[2].prediction.seconds < 1.05 * rows[1].prediction.seconds
    assert verdict_of(predictor, rows).best.name == "mirrored"


def test_what_does_not_fit_one_device_must_be_spread() -> None:
    needed = Predictor(stevens_profile("conv"), BOX).predict(strategy_of("mirrored"), 4, 400).memory_bytes
    small = replace(BOX, devices=(replace(BOX.devices[0], memory_GB=1.1 * needed / 1e9),))
    said = verdict("conv", 400, small)
    assert said.add_devices
    assert said.best.speedup is None
    assert "does not fit into one" in said.reason


def test_at_the_break_even_bandwidth_both_take_as_long() -> None:
    profile = stevens_profile("linear")
    mirrored = strategy_of("mirrored")
    even = break_even(Predictor(profile, BOX), mirrored, 2, 100).bandwidth_GBps
    assert even is not None
    there = Predictor(profile, BOX.with_link("devices", even))
    assert there.simulate(mirrored, 2, 100).step_seconds == pytest.approx(
        there.simulate(Single(), 1, 100).step_seconds, rel=0.03
    )


def test_the_break_even_batch_is_the_first_that_is_faster() -> None:
    predictor = Predictor(stevens_profile("linear"), BOX)
    batch = break_even(predictor, strategy_of("mirrored"), 2, 100).batch
    assert batch is not None

    def gain(size: int) -> float:
        spread = predictor.simulate(strategy_of("mirrored"), 2, size).step_seconds
        return predictor.simulate(Single(), 1, size).step_seconds - spread

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
    speedups = [change.speedup for change in changes]
    assert speedups == sorted(speedups, reverse=True)
    fp16 = next(change for change in changes if "fp16" in change.change)
    assert not fp16.exact
    plain = rows_of(Predictor(stevens_profile("linear"), BOX), [strategy_of("mirrored")], [2], [100])[1].speedup
    assert plain is not None
    assert fp16.speedup > 1.3 * plain


def test_a_better_strategy_that_nobody_asked_about_is_named() -> None:
    predictor = Predictor(stevens_profile("linear"), BOX)
    rows = rows_of(predictor, [strategy_of("parameter-server")], [1, 4], [100])
    [better] = [change for change in verdict_of(predictor, rows).changes if change.change.startswith("the strategy ")]
    named = strategy_of(better.change.removeprefix("the strategy "))
    assert named.exact
    assert better.seconds == pytest.approx(predictor.simulate(named, 4, 100).step_seconds)
    assert better.seconds <= predictor.simulate(strategy_of("ring"), 4, 100).step_seconds < rows[1].prediction.seconds


def test_where_loading_counts_more_workers_are_priced() -> None:
    [loading] = [change for change in verdict("linear", 100).changes if "loading workers" in change.change]
    profile = stevens_profile("linear")
    loaded = {"steps": tuple(step.model_copy(update={"load": 0.0}) for step in profile.steps)}
    assert loading.seconds == pytest.approx(
        Predictor(profile.model_copy(update=loaded), BOX).simulate(strategy_of("mirrored"), 2, 100).step_seconds
    )
    assert loading.exact


def test_rows_compare_with_one_device_at_the_same_batch_and_at_the_same_share() -> None:
    predictor = Predictor(stevens_profile("conv"), BOX)
    alone, spread = rows_of(predictor, [THREADS], [4], [100])
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
    rows = rows_of(predictor, [strategy_of("mirrored")], [4, 8], [80])
    for row, hosts in zip(rows, (1, 1, 2), strict=True):
        assert row.cost_per_epoch == pytest.approx(0.01 * hosts / 2 * row.prediction.epoch_seconds)
