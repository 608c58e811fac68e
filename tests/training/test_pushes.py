"""Finished steps of asynchronous workers, counted from the pushes that servers have applied."""

from __future__ import annotations

from scalewise.training.asynchronous import StepCounter


def test_a_step_is_finished_after_one_push_by_every_worker() -> None:
    steps = StepCounter(done=10, samples=100, batch=20, workers=4)
    assert [steps.after(pushes) for pushes in (0, 3, 4, 7, 9, 16)] == [10, 10, 11, 11, 12, 14]


def test_a_worker_without_samples_in_a_batch_makes_no_push() -> None:
    """Epochs of batches with 5, 5 and 3 samples: 4, 4 and 3 pushes."""
    steps = StepCounter(done=0, samples=13, batch=5, workers=4)
    assert [steps.after(pushes) for pushes in range(4, 23)] == [1] * 4 + [2] * 3 + [3] * 4 + [4] * 4 + [5] * 3 + [6]


def test_a_resumed_run_may_start_with_the_short_batch() -> None:
    assert StepCounter(done=2, samples=13, batch=5, workers=4).after(3) == 3
