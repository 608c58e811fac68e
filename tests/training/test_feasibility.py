"""Runs that cannot succeed are refused before the first step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import Data
from scalewise.models.workload import Workload, classification_loss
from scalewise.strategies.registry import strategy_of
from scalewise.training.feasibility import check_batch_norm, memory_problem, meta_model
from tests.command import Run

GB = 10**9
LARGE = 27 * GB
"""Weights of 6.7 billion parameters in fp32."""


@pytest.mark.parametrize(
    ("optimizer", "copies", "limit_GB", "on_cpu", "expected"),
    [
        ("adam", 1, 109, True, None),
        ("sgd", 1, 54, True, None),
        ("adam", 1, 24, True, "weights, gradients and Adam state need 108 GB of 24 GB; `scalewise advise` finds"),
        ("adam", 1, 64, True, "need 108 GB of 64 GB; --optimizer sgd needs 54 GB"),
        ("sgd", 1, 24, True, "weights and gradients need 54 GB of 24 GB"),
        ("adam", 2, 120, True, "Adam state of 2 devices need 162 GB of 120 GB; --optimizer sgd needs 108 GB; fewer"),
        ("adam", 1, 80, False, "need 108 GB of 80 GB; --optimizer sgd needs 54 GB; --strategy"),
    ],
)
def test_the_state_of_a_model_is_compared_with_the_memory(
    optimizer: str, copies: int, limit_GB: int, on_cpu: bool, expected: str | None
) -> None:
    problem = memory_problem(LARGE, LARGE, optimizer, copies, limit_GB * GB, on_cpu)
    assert problem == expected if expected is None else expected in str(problem)


def test_a_model_larger_than_the_machine_is_refused(scalewise: Run) -> None:
    """400 GB of weights: nothing of them is allocated."""
    output = scalewise("train", "synthetic:parameters=100000000000,flops=1000000000000", "--batch", 1, "--steps", 1)
    output.refused(1, "weights, gradients and Adam state need 1,600 GB of ")


def data_of(shape: tuple[int, ...], samples: int) -> Data:
    return Data("generated", (torch.zeros(samples, *shape), torch.zeros(samples, dtype=torch.long)))


def flat() -> Workload:
    shape = (6,)
    return Workload(
        "flat",
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)),
        lambda _: data_of(shape, 16),
        classification_loss,
        shape,
    )


def images() -> Workload:
    """Batch norm over the pixels of an image: one sample has many values per channel."""
    shape = (3, 8, 8)
    return Workload(
        "images",
        lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)),
        lambda _: data_of(shape, 16),
        classification_loss,
        shape,
    )


@pytest.mark.parametrize(
    ("samples", "batch", "devices", "accumulate", "steps", "message"),
    [
        (16, 4, 2, 1, 100, None),
        (17, 4, 1, 1, 100, "the last batch of an epoch has 1, which leaves one to a device (1 device)"),
        (17, 4, 1, 1, 4, None),
        (18, 8, 2, 1, 100, "the last batch of an epoch has 2, which leaves one to a device (2 devices)"),
        (16, 2, 2, 1, 100, "a batch has 2, which leaves one to a device (2 devices)"),
        (16, 4, 2, 2, 100, "a batch has 4, which leaves one to a device (2 devices in 2 parts)"),
        (17, 8, 4, 1, 100, "the last batch of an epoch has 1"),
    ],
)
def test_batch_norm_with_one_sample_on_a_device_is_refused(
    samples: int, batch: int, devices: int, accumulate: int, steps: int, message: str | None
) -> None:
    settings = Settings(batch, None, steps, accumulate=accumulate)
    strategy = strategy_of("mirrored" if devices > 1 else "single")
    workload, data = flat(), data_of((6,), samples)
    if message is None:
        check_batch_norm(workload, data, settings, strategy, devices)
        return
    with pytest.raises(UserError) as error:
        check_batch_norm(workload, data, settings, strategy, devices)
    assert message in str(error.value)


def test_batch_norm_over_pixels_needs_no_second_sample() -> None:
    check_batch_norm(images(), data_of((3, 8, 8), 17), Settings(4, None, 100), strategy_of("mirrored"), 2)


def test_other_models_may_have_a_single_sample() -> None:
    plain = Workload("plain", lambda: nn.Linear(6, 3), lambda _: data_of((6,), 16), classification_loss, (6,))
    check_batch_norm(plain, data_of((6,), 17), Settings(4, None, 100), strategy_of("mirrored"), 2)


def test_a_model_that_needs_real_numbers_is_not_checked() -> None:
    def build() -> nn.Module:
        return nn.Linear(int(torch.ones(1)), 3)

    broken = Workload("broken", build, lambda _: data_of((6,), 1), classification_loss, (6,))
    assert meta_model(broken) is None
