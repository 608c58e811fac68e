"""Tests of the validation of settings and of steps per epoch."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from scalewise.core.errors import UserError
from scalewise.core.training_options import Settings, steps_per_epoch


@pytest.mark.parametrize(("samples", "batch", "steps"), [(10, 5, 2), (11, 5, 3), (1, 1, 1), (3, 4, 1)])
def test_steps_per_epoch(samples: int, batch: int, steps: int) -> None:
    assert steps_per_epoch(samples, batch) == steps
    assert Settings(batch, epochs=3).total_steps(samples) == 3 * steps
    assert Settings(batch, epochs=None, steps=7).total_steps(samples) == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 0}, "--batch is 0; it must be at least 1"),
        ({"epochs": 0}, "--epochs is 0; it must be at least 1"),
        ({"steps": -1}, "--steps is -1; it must be at least 1"),
        ({"accumulate": 0}, "--accumulate is 0; it must be at least 1"),
        ({"learning_rate": -0.1}, "--learning-rate is -0.1; it must be a finite number above 0"),
        ({"learning_rate": inf}, "--learning-rate is inf; it must be a finite number above 0"),
        ({"learning_rate": nan}, "--learning-rate is nan; it must be a finite number above 0"),
        ({"seed": -1}, "--seed is -1; it must be a whole number from 0"),
        ({"resume": True}, "--resume needs --checkpoint FILE"),
        ({"checkpoint": Path("c"), "checkpoint_every": 0}, "--checkpoint-every is 0; it must be at least 1"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Settings(**{"batch": 4, **values}).check()


def test_a_batch_larger_than_the_data_is_refused() -> None:
    Settings(10).check_fits(10, "numbers")
    with pytest.raises(
        UserError, match=r"--batch is 1,000 but there are only 999 samples \(numbers\); use at most 999"
    ):
        Settings(1000).check_fits(999, "numbers")
