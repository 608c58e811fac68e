"""A user's own DDP training loop, as one rank runs it in the tests of attach."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import scalewise
from scalewise.launch.worker import Worker

EVALUATION_SECONDS = 1.0


def watched(_: Worker, steps: int, accumulate: int) -> tuple[dict[str, Any], str]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    attachment = scalewise.attach(model, optimizer, at_exit=False)
    for _step in range(steps):
        for _part in range(accumulate):
            nn.functional.cross_entropy(model(torch.randn(8, 300)), torch.randint(0, 10, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    document, text = attachment.to_json(), str(attachment)
    attachment.detach()
    return document, text


def watched_between_evaluations(_: Worker, epochs: int, steps: int) -> tuple[dict[str, Any], list[float]]:
    """Return the report and the seconds of every timed step, including warm-up steps."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    attachment = scalewise.attach(model, optimizer, at_exit=False)
    for _epoch in range(epochs):
        for _step in range(steps):
            model(torch.randn(8, 30)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(torch.randn(8, 30))
            time.sleep(EVALUATION_SECONDS)
            model(torch.randn(8, 30))
    model(torch.randn(8, 30)).sum().backward()  # a step without an update
    document = attachment.to_json()
    attachment.detach()
    return document, attachment.times.all_seconds
