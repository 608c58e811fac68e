"""How far asynchronous workers are, from the pushes that servers have applied: plain numbers."""

from __future__ import annotations

from scalewise.training.pushes import Steps


def test_a_step_takes_a_push_by_every_worker() -> None:
    steps = Steps(done=10, samples=100, batch=20, workers=4)
    assert [steps.after(pushes) for pushes in (0, 3, 4, 7, 9, 16)] == [10, 10, 11, 11, 12, 14]


def test_a_worker_makes_no_push_for_a_batch_that_has_no_sample_for_it() -> None:
    """Batches of 5, 5 and 3 samples, over and over: 4, 4 and 3 pushes."""
    steps = Steps(done=0, samples=13, batch=5, workers=4)
    assert [steps.after(pushes) for pushes in range(4, 23)] == [1] * 4 + [2] * 3 + [3] * 4 + [4] * 4 + [5] * 3 + [6]


def test_of_a_resumed_run_the_first_batch_may_be_the_short_one() -> None:
    assert Steps(done=2, samples=13, batch=5, workers=4).after(3) == 3
