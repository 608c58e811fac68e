"""Tests of the recorded completion times of gradients."""

from __future__ import annotations

import torch
from torch import nn

from scalewise.runtime.clock import Watched
from tests import tiny


def test_completion_times_increase_to_the_end_of_backward() -> None:
    watched = Watched(tiny.float32(), torch.device("cpu"))
    model = watched.workload.model()
    inputs, targets = torch.randn(4, tiny.INPUTS), torch.zeros(4, dtype=torch.int64)
    for _ in range(3):
        watched.workload.loss(model(inputs), targets).backward()
    ready = watched.ready()
    assert len(ready) == len(list(model.parameters()))
    assert list(ready) == sorted(ready)
    assert 0 < ready[0] < ready[-1] == 1.0


def test_a_second_model_is_not_watched() -> None:
    watched = Watched(tiny.float32(), torch.device("cpu"))
    trained, counted = watched.workload.model(), watched.workload.model()
    inputs = torch.randn(4, tiny.INPUTS)
    watched.workload.loss(trained(inputs), torch.zeros(4, dtype=torch.int64)).backward()
    counted(inputs).sum().backward()
    assert len(watched.ready()) == 4


def test_a_model_that_is_created_for_a_check_does_not_hide_the_trained_one() -> None:
    watched = Watched(tiny.float32(), torch.device("cpu"))
    watched.workload.model()
    trained = watched.workload.model()
    for _ in range(2):
        watched.workload.loss(trained(torch.randn(4, tiny.INPUTS)), torch.zeros(4, dtype=torch.int64)).backward()
    assert len(watched.ready()) == 4


def test_late_layers_are_ready_first() -> None:
    """The last layer takes almost no time compared with the first."""
    workload = tiny.float32()
    first, last = nn.Linear(tiny.INPUTS, 4000), nn.Linear(4000, tiny.CLASSES)
    object.__setattr__(workload, "model", lambda: nn.Sequential(first, nn.Tanh(), last))
    watched = Watched(workload, torch.device("cpu"))
    model = watched.workload.model()
    for _ in range(3):
        loss = watched.workload.loss(model(torch.randn(512, tiny.INPUTS)), torch.zeros(512, dtype=torch.int64))
        loss.backward()
    assert watched.ready()[1] < 0.9
