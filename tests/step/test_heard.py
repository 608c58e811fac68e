"""What is there of what was given out, where others give some of it back."""

from __future__ import annotations

from scalewise.step.heard import Live, Seen


def test_where_all_is_heard_the_peak_is_the_sum() -> None:
    live = Live(10, heap_bytes=1000)
    live.follow([5, 7, -5, Seen(1007), 2, -9])
    assert (live.most, live.bytes) == (22, 10)


def test_what_others_gave_back_is_gone_from_when_it_is_seen() -> None:
    live = Live(0, heap_bytes=1000)
    live.follow([30, Seen(1030), 30, Seen(1030), 20])
    assert (live.most, live.bytes) == (60, 50)


def test_what_others_have_for_a_while_is_not_taken_for_given_back() -> None:
    live = Live(0, heap_bytes=1000)
    live.follow([30, Seen(1090), 5, Seen(1035)])
    assert (live.most, live.bytes) == (35, 35)


def test_what_a_process_grows_by_in_a_step_hides_nothing_in_the_next() -> None:
    grown: list[int | Seen] = [8, Seen(1058), Seen(1058, step_ended=True)]
    live = Live(0, heap_bytes=1000)
    live.follow([*grown, 30, Seen(1058), 30])
    assert (live.most, live.bytes) == (38, 38)
