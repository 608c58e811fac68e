"""Tests of the deadlines of workers that report too rarely."""

from __future__ import annotations

from scalewise.launch.parameter_server_session import GRACE_SECONDS, HeartbeatMonitor

DEADLINE_SECONDS = 60 + GRACE_SECONDS


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def _two_workers() -> tuple[HeartbeatMonitor, Clock]:
    clock = Clock()
    monitor = HeartbeatMonitor(60.0, clock)
    for worker in (0, 1):
        monitor.start(worker)
    return monitor, clock


def test_workers_that_are_all_slow_do_not_time_out() -> None:
    """Updates take 100 s; one worker reports half a second after the other."""
    monitor, clock = _two_workers()
    for number in range(1, 5):
        for worker in (0, 1):
            clock.seconds = 100.0 * number + 0.5 * worker
            left = monitor.seconds_left(worker)
            assert left is None or left > 59
            monitor.report(worker)


def test_a_silent_worker_times_out_while_another_completes_updates() -> None:
    monitor, clock = _two_workers()
    for clock.seconds in (1.0, 2.0, 3.0, 50.0):
        monitor.report(0)
    assert monitor.seconds_left(0) is None
    assert monitor.seconds_left(1) == 2 + DEADLINE_SECONDS - 50
    monitor.report(1)
    assert monitor.seconds_left(1) is None


def test_after_the_first_finish_the_others_have_a_deadline() -> None:
    monitor, clock = _two_workers()
    monitor.finish(0)
    assert monitor.seconds_left(1) == DEADLINE_SECONDS
    clock.seconds = 50.0
    monitor.report(1)
    assert monitor.seconds_left(1) == DEADLINE_SECONDS


def test_a_worker_that_times_out_shortens_the_deadline_of_silent_workers() -> None:
    """With bounded staleness the other workers stop reporting too."""
    monitor, clock = _two_workers()
    monitor.start(2)
    clock.seconds = 59.0
    monitor.report(2)
    clock.seconds = 61.0
    monitor.timed_out(0)
    assert monitor.seconds_left(1) == GRACE_SECONDS
    assert monitor.seconds_left(2) == 58


def test_a_dropped_worker_has_no_deadline() -> None:
    monitor, clock = _two_workers()
    monitor.finish(0)
    monitor.drop(1)
    assert monitor.seconds_left(1) is None
    clock.seconds = 10.0
    monitor.start(1)
    assert monitor.seconds_left(1) == DEADLINE_SECONDS
