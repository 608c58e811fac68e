"""Asynchronous workers over many rounds: they wait only for servers, and a straggler slows down only itself."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.predict.predictor import AsynchronousRounds, Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.parameter_server_async import rounds_plan
from scalewise.strategies.plan import Footprint
from scalewise.strategies.registry import strategy_of

ASYNC, SYNC = strategy_of("parameter-server-async"), strategy_of("parameter-server")


def box(workers: int, GBps: float) -> Cluster:
    device = Device("core", workers, 8.0, 0.05, 1e6, 0.0)
    links = (Link("devices", "sockets", GBps, 0.0), Link("host-device", "memory", GBps, 0.0))
    return Cluster("cores", 1, workers, (device,), links, backend="gloo", knowledge="measured")


def profile(compute: float, update: float, parameter_bytes: int = 4_000_000) -> ProfileDocument:
    """Profile whose steps take the same time at any batch."""
    steps = tuple(
        StepCost(batch=size, forward=compute / 4, backward=compute * 3 / 4, update=update, load=0) for size in (1, 64)
    )
    layers = (LayerCost(name="one", parameter_bytes=parameter_bytes, activation_bytes=4, flops=1),)
    return ProfileDocument(
        workload="x", device="core", execution="eager", samples_per_epoch=64, parameter_bytes=parameter_bytes,
        layers=layers, steps=steps,
    )  # fmt: skip


def test_with_fast_servers_a_round_takes_the_workers_compute_time() -> None:
    step = Predictor(profile(1.0, 0.0), box(4, 1000)).simulate(ASYNC, 4, 64)
    assert isinstance(step, AsynchronousRounds)
    assert step.cycles == pytest.approx([1.0] * 4, rel=1e-2)


def test_a_slow_server_limits_all_workers() -> None:
    """Four updates of 0.5 s take longer than a second of compute, so a round takes two seconds."""
    assert Predictor(profile(1.0, 0.5), box(4, 1000)).simulate(ASYNC, 4, 64).step_seconds == pytest.approx(
        2.0, rel=1e-2
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_push_is_answered_when_it_has_been_applied_completely(workers: int) -> None:
    """Pushing 4 MB in four pieces takes 40 ms, the update 100 ms, pulling 40 ms; synchronous servers overlap them."""
    pieces = profile(1e-6, 0.1)
    seconds = {"parameter-server": 0.0, "parameter-server-async": 0.0}
    for name in seconds:
        strategy = strategy_of(f"{name}:piece_MB=1")
        seconds[name] = Predictor(pieces, box(workers, 0.1)).simulate(strategy, workers, 64).step_seconds
    assert seconds["parameter-server-async"] >= 0.18 * 0.99
    assert seconds["parameter-server"] < 0.16 * workers


def test_two_servers_share_the_updates() -> None:
    two = strategy_of("parameter-server-async:servers=2,piece_MB=1")
    assert Predictor(profile(1.0, 0.5), box(4, 1000)).simulate(two, 4, 64).step_seconds < 1.4


def test_a_straggler_slows_down_only_itself_unless_workers_are_synchronous() -> None:
    """Three workers take 1 s and one takes 4 s: four workers make 3.25 rounds per second; synchronously 1 per worker
    every 4 s."""
    predictor = Predictor(profile(1.0, 0.0), box(4, 1000))
    alone = predictor.simulate(ASYNC, 4, 64, slow={2: 0.25})
    together = predictor.simulate(SYNC, 4, 64, slow={2: 0.25})
    assert alone.step_seconds == pytest.approx(4 / 3.25, rel=1e-2)
    assert together.step_seconds == pytest.approx(4.0, rel=1e-2)


def test_bounded_staleness_makes_fast_workers_wait_for_the_straggler() -> None:
    """Rounds take 1 s and 4 s. In 4 s the fast worker makes two rounds with a bound of 1, four with a bound of 4."""
    predictor = Predictor(profile(1.0, 0.0), box(2, 1000))
    rounds = {bound: _step_seconds_of_two(bound, predictor) for bound in (1, 2, 4, None)}
    assert rounds[1] == pytest.approx(2 / (3 / 4), rel=1e-2)
    assert rounds[2] == pytest.approx(2 / (4 / 4), rel=1e-2)
    assert rounds[4] == pytest.approx(2 / (5 / 4), rel=1e-2)
    assert rounds[None] == pytest.approx(2 / (5 / 4), rel=1e-2)


def _step_seconds_of_two(bound: int | None, predictor: Predictor) -> float:
    strategy = ASYNC if bound is None else strategy_of(f"parameter-server-async:max_staleness={bound}")
    return predictor.simulate(strategy, 2, 64, slow={1: 0.25}).step_seconds


def test_waiting_for_a_straggler_counts_as_pull() -> None:
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


def test_slower_devices_make_fewer_rounds() -> None:
    mixed = box(2, 1000)
    kinds = (Device("core", 1, 8.0, 0.05, 1e6, 0.0), Device("half a core", 1, 8.0, 0.025, 1e6, 0.0))
    mixed = Cluster("mixed", 1, 2, kinds, mixed.links, backend="gloo", knowledge="measured")
    predictor = Predictor(profile(1.0, 0.0), mixed)
    step = predictor.simulate(ASYNC, 2, 64)
    assert isinstance(step, AsynchronousRounds)
    assert step.cycles == pytest.approx([1.0, 2.0], rel=1e-2)
    assert predictor.simulate(SYNC, 2, 64).step_seconds == pytest.approx(2.0, rel=1e-2)


def test_phases_sum_to_a_round() -> None:
    prediction = Predictor(profile(1.0, 1.0), box(4, 1000)).predict(ASYNC, 4, 64)
    assert sum(prediction.phases.values()) == pytest.approx(prediction.seconds)
    assert prediction.phases["forward"] + prediction.phases["backward"] == pytest.approx(1.0, rel=0.05)


def test_thousands_of_workers_wait_for_their_server() -> None:
    """Each worker moves 97 MB in and out of a server at 2 GB/s, so rounds get longer with the number of workers."""
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 512 hosts, infiniband-200"))
    few, many = (predictor.simulate(ASYNC, count, 10 * count).step_seconds for count in (256, 4096))
    assert many == pytest.approx(16 * few, rel=0.05)


def test_rounds_get_longer_beyond_the_simulated_number_of_workers() -> None:
    """One server process serves the workers of all hosts."""
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 8 hosts, 100gbe"))
    predictions = [predictor.predict(ASYNC, count, 10 * count) for count in (8, 16, 32, 64)]
    for fewer, more in pairwise(predictions):
        assert more.seconds == pytest.approx(2 * fewer.seconds, rel=0.03)
    for fewer, more in pairwise(predictions[1:]):
        assert more.high / more.seconds == pytest.approx(fewer.high / fewer.seconds, rel=0.02)


def test_twice_as_many_gpu_workers_take_twice_as_long_also_over_hosts() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("8 x a100-nvlink, 4 hosts, infiniband-400"))
    one_host, two_hosts = (predictor.simulate(SYNC, count, 10 * count).step_seconds for count in (8, 16))
    assert two_hosts == pytest.approx(2 * one_host, rel=0.1)


def test_a_round_sends_as_many_bytes_as_a_step() -> None:
    footprint = Footprint((4_000_000, 400), 48, 8, 40)
    plan = rounds_plan(footprint, 3, 9, 2, 1.0, rounds=2)
    step = strategy_of("parameter-server-async:servers=2,piece_MB=1").plan(footprint, 3, 9)
    headers = step.bytes_per_step - plan.bytes_per_step / 2
    assert 0 <= headers < 1000


def test_an_update_waits_for_the_header_after_the_gradients() -> None:
    plan = rounds_plan(Footprint((4_000_000, 400), 48, 8, 40), 1, 3, 1, 1.0, rounds=1)
    [update] = [operation for operation in plan.operations if operation.phase == "update"]
    arrived = [plan.operations[position].send for position in update.after]
    sizes = [send.bytes for send in arrived if send]
    assert len(sizes) == 4 + 1
    assert sizes[-1] < 1000 < min(sizes[:-1])
