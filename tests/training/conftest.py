"""Fixtures: train on the CPU and run commands in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.strategies.single import Single
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Report, Request
from tests.command import Run, in_process

CPU = Place(0, 1, torch.device("cpu"))
Train = Callable[..., Outcome]


@pytest.fixture
def train() -> Train:
    """Function that runs the training loop: `train("float32", batch=4, steps=3, ...)` returns its Outcome."""

    def run(kind: str, samples: int = 16, report: Callable[[Report], None] | None = None, **settings: Any) -> Outcome:
        if "steps" in settings:
            settings.setdefault("epochs", None)
        request = Request(
            kind if ":" in kind else f"tests.tiny:{kind}",
            Single(),
            Settings(**{"batch": 4, **settings}),
            DataRequest(samples=samples),
        )
        return train_on(CPU, request, report or (lambda _: None))

    return run


@pytest.fixture
def scalewise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return in_process(capfd, monkeypatch)
