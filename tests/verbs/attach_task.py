"""Somebody's own DDP loop, as a rank runs it in the tests of attach."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import scalewise
from scalewise.session.worker import Worker


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
