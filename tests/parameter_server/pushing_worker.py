"""Worker process that pushes one gradient of ones.

Usage: `python -m tests.parameter_server.pushing_worker PORT ELEMENTS`.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.launch.elastic_agent import LOOPBACK
from scalewise.parameter_server.client import Client

WORKER = 7
PIECE_MB = 1000.0
SECONDS = 20.0

if __name__ == "__main__":
    port, elements = map(int, sys.argv[1:])
    store = TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=SECONDS))
    model = nn.Linear(1, elements, bias=False)
    client = Client(model, store, WORKER, 1, PIECE_MB, SECONDS, whole_pushes=True)
    client.begin(1)
    model(torch.ones(1)).sum().backward()
    client.finish_pushes()
    client.finish_pulls()
