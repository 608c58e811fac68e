"""When a worker that nobody need wait for has been silent for too long."""

from __future__ import annotations

from scalewise.session.silence import SAY_SO_SECONDS, Silence

PATIENCE = 60 + SAY_SO_SECONDS


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def _two() -> tuple[Silence, Clock]:
    clock = Clock()
    silence = Silence(60.0, clock)
    for worker in (0, 1):
        silence.begin(worker)
    return silence, clock


def test_workers_that_are_all_slow_are_not_silent() -> None:
    """Updates of 100 s, one worker half a second behind the other."""
    silence, clock = _two()
    for number in range(1, 5):
        for worker in (0, 1):
            clock.seconds = 100.0 * number + 0.5 * worker
            left = silence.seconds_left(worker)
            assert left is None or left > 59
            silence.report(worker)


def test_one_that_says_nothing_while_another_does_whole_updates_is_overdue_after_the_timeout() -> None:
    silence, clock = _two()
    for clock.seconds in (1.0, 2.0, 3.0, 50.0):
        silence.report(0)
    assert silence.seconds_left(0) is None
    assert silence.seconds_left(1) == 2 + PATIENCE - 50
    silence.report(1)
    assert silence.seconds_left(1) is None


def test_once_one_has_finished_the_others_must_report_or_finish() -> None:
    silence, clock = _two()
    silence.finish(0)
    assert silence.seconds_left(1) == PATIENCE
    clock.seconds = 50.0
    silence.report(1)
    assert silence.seconds_left(1) == PATIENCE


def test_one_that_waited_in_vain_makes_those_overdue_that_were_silent_as_long() -> None:
    """With bounded staleness the others stop reporting too."""
    silence, clock = _two()
    silence.begin(2)
    clock.seconds = 59.0
    silence.report(2)
    clock.seconds = 61.0
    silence.waited(0)
    assert silence.seconds_left(1) == SAY_SO_SECONDS
    assert silence.seconds_left(2) == 58


def test_nobody_waits_for_one_that_is_dropped() -> None:
    silence, clock = _two()
    silence.finish(0)
    silence.drop(1)
    assert silence.seconds_left(1) is None
    clock.seconds = 10.0
    silence.begin(1)
    assert silence.seconds_left(1) == PATIENCE
