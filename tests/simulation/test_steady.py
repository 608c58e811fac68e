"""Asynchronous workers over many rounds: nobody waits but for the servers, stragglers hold up only themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.plan import Footprint
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost
from scalewise.simulation.steady import Steady
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.unsynchronised import rounds_plan

ASYNC, SYNC = strategy_of("parameter-server-async"), strategy_of("parameter-server")


def box(workers: int, GBps: float) -> Cluster:
    device = Device("core", workers, 8.0, 0.05, 1e6, 0.0)
    links = (Link("devices", "sockets", GBps, 0.0), Link("host-device", "memory", GBps, 0.0))
    return Cluster("cores", 1, workers, (device,), links, backend="gloo", knowledge="measured")


def profile(compute: float, update: float, parameter_bytes: int = 4_000_000) -> ProfileDocument:
    """Seconds of any batch."""
    steps = tuple(
        StepCost(batch=size, forward=compute / 4, backward=compute * 3 / 4, update=update, load=0) for size in (1, 64)
    )
    layers = (LayerCost(name="one", parameter_bytes=parameter_bytes, activation_bytes=4, flops=1),)
    return ProfileDocument(
        workload="x", device="core", execution="eager", samples_per_epoch=64, parameter_bytes=parameter_bytes,
        layers=layers, steps=steps,
    )  # fmt: skip


def test_where_servers_are_quick_a_round_is_a_workers_own() -> None:
    step = Predictor(profile(1.0, 0.0), box(4, 1000)).simulate(ASYNC, 4, 64)
    assert isinstance(step, Steady)
    assert step.cycles == pytest.approx([1.0] * 4, rel=1e-2)


def test_a_server_that_updates_for_each_in_turn_sets_the_pace_of_all() -> None:
    """Four updates of 0.5 s for every second of compute: a round is two seconds."""
    assert Predictor(profile(1.0, 0.5), box(4, 1000)).simulate(ASYNC, 4, 64).step_seconds == pytest.approx(
        2.0, rel=1e-2
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_push_is_answered_when_all_of_it_has_been_applied(workers: int) -> None:
    """40 ms to push 4 MB, in four pieces, 100 ms to update all of it and 40 to pull; synchronously that overlaps."""
    pieces = profile(1e-6, 0.1)
    there = {"parameter-server": 0.0, "parameter-server-async": 0.0}
    for name in there:
        strategy = strategy_of(f"{name}:piece_MB=1")
        there[name] = Predictor(pieces, box(workers, 0.1)).simulate(strategy, workers, 64).step_seconds
    assert there["parameter-server-async"] >= 0.18 * 0.99
    assert there["parameter-server"] < 0.16 * workers


def test_two_servers_share_what_one_had_to_do() -> None:
    two = strategy_of("parameter-server-async:servers=2,piece_MB=1")
    assert Predictor(profile(1.0, 0.5), box(4, 1000)).simulate(two, 4, 64).step_seconds < 1.4


def test_a_straggler_holds_up_itself_and_synchronous_workers_all() -> None:
    """Three at a second and one at four: 3.25 rounds a second over four workers, instead of one in four seconds."""
    predictor = Predictor(profile(1.0, 0.0), box(4, 1000))
    alone = predictor.simulate(ASYNC, 4, 64, slow={2: 0.25})
    together = predictor.simulate(SYNC, 4, 64, slow={2: 0.25})
    assert alone.step_seconds == pytest.approx(4 / 3.25, rel=1e-2)
    assert together.step_seconds == pytest.approx(4.0, rel=1e-2)


def test_a_bound_makes_the_quick_wait_for_the_straggler() -> None:
    """A second against four: bounded by 1, the quick one does two rounds in four seconds; by 4, all four it can."""
    predictor = Predictor(profile(1.0, 0.0), box(2, 1000))
    rounds = {bound: _of_two(bound, predictor) for bound in (1, 2, 4, None)}
    assert rounds[1] == pytest.approx(2 / (3 / 4), rel=1e-2)
    assert rounds[2] == pytest.approx(2 / (4 / 4), rel=1e-2)
    assert rounds[4] == pytest.approx(2 / (5 / 4), rel=1e-2)
    assert rounds[None] == pytest.approx(2 / (5 / 4), rel=1e-2)


def _of_two(bound: int | None, predictor: Predictor) -> float:
    strategy = ASYNC if bound is None else strategy_of(f"parameter-server-async:max_staleness={bound}")
    return predictor.simulate(strategy, 2, 64, slow={1: 0.25}).step_seconds


def test_who_waits_for_a_straggler_waits_for_its_pull() -> None:
    kinds = (Device("core", 1, 8.0, 0.05, 1e6, 0.0), Device("a quarter", 1, 8.0, 0.0125, 1e6, 0.0))
    mixed = Cluster("mixed", 1, 2, kinds, box(2, 1000).links, backend="gloo", knowledge="measured")
    predictor = Predictor(profile(1.0, 0.0), mixed)
    free, bounded = (
        predictor.predict(strategy_of(f"parameter-server-async{options}"), 2, 64)
        for options in ("", ":max_staleness=1")
    )
    assert sum(bounded.phases.values()) == pytest.approx(bounded.seconds)
    assert bounded.phases["pull"] - free.phases["pull"] == pytest.approx(bounded.seconds - free.seconds)
    assert bounded.phases["backward"] == pytest.approx(free.phases["backward"])
    assert bounded.seconds == pytest.approx(8 / 3, rel=1e-2)


def test_of_mixed_devices_the_slow_kind_does_less() -> None:
    mixed = box(2, 1000)
    kinds = (Device("core", 1, 8.0, 0.05, 1e6, 0.0), Device("half a core", 1, 8.0, 0.025, 1e6, 0.0))
    mixed = Cluster("mixed", 1, 2, kinds, mixed.links, backend="gloo", knowledge="measured")
    predictor = Predictor(profile(1.0, 0.0), mixed)
    step = predictor.simulate(ASYNC, 2, 64)
    assert isinstance(step, Steady)
    assert step.cycles == pytest.approx([1.0, 2.0], rel=1e-2)
    assert predictor.simulate(SYNC, 2, 64).step_seconds == pytest.approx(2.0, rel=1e-2)


def test_phases_sum_to_a_round() -> None:
    made = Predictor(profile(1.0, 1.0), box(4, 1000)).predict(ASYNC, 4, 64)
    assert sum(made.phases.values()) == pytest.approx(made.seconds)
    assert made.phases["forward"] + made.phases["backward"] == pytest.approx(1.0, rel=0.05)


def test_thousands_of_workers_wait_for_their_server() -> None:
    """97 MB in and out of a server at 2 GB/s for each: beyond what is followed, rounds grow with the workers."""
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 512 hosts, infiniband-200"))
    few, many = (predictor.simulate(ASYNC, count, 10 * count).step_seconds for count in (256, 4096))
    assert many == pytest.approx(16 * few, rel=0.05)


def test_beyond_those_that_are_followed_rounds_go_on_growing() -> None:
    """One server's process serves all, from whatever host they come."""
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 8 hosts, 100gbe"))
    made = [predictor.predict(ASYNC, count, 10 * count) for count in (8, 16, 32, 64)]
    for fewer, more in pairwise(made):
        assert more.seconds == pytest.approx(2 * fewer.seconds, rel=0.03)
    for fewer, more in pairwise(made[1:]):
        assert more.high / more.seconds == pytest.approx(fewer.high / fewer.seconds, rel=0.02)


def test_servers_of_gpus_take_twice_as_long_for_twice_as_many_on_other_hosts_too() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 4 hosts, infiniband-400"))
    here, over = (predictor.simulate(SYNC, count, 10 * count).step_seconds for count in (8, 16))
    assert over == pytest.approx(2 * here, rel=0.1)


def test_a_round_sends_what_a_step_does() -> None:
    footprint = Footprint((4_000_000, 400), 48, 8, 40)
    plan = rounds_plan(footprint, 3, 9, 2, 1.0, rounds=2)
    step = strategy_of("parameter-server-async:servers=2,piece_MB=1").plan(footprint, 3, 9)
    headers = step.bytes_per_step - plan.bytes_per_step / 2
    assert 0 <= headers < 1000


def test_a_server_waits_for_the_header_that_follows_a_workers_gradients() -> None:
    plan = rounds_plan(Footprint((4_000_000, 400), 48, 8, 40), 1, 3, 1, 1.0, rounds=1)
    [update] = [operation for operation in plan.operations if operation.phase == "update"]
    arrived = [plan.operations[position].send for position in update.after]
    sizes = [send.bytes for send in arrived if send]
    assert len(sizes) == 4 + 1
    assert sizes[-1] < 1000 < min(sizes[:-1])
