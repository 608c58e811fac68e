"""Which kind of session a strategy runs in."""

from __future__ import annotations

import torch

from scalewise.errors import UserError
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.torchrun import TorchrunSession, under_torchrun
from scalewise.strategies.data_parallel import DataParallel
from scalewise.strategies.registry import STRATEGIES
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy


def open_session(strategy: Strategy, placement: Placement) -> Session | TorchrunSession | InProcess:
    """One device, and torch's own DataParallel, need no other process; torchrun has started its own already."""
    if isinstance(strategy, Single):
        if placement.devices != 1 or placement.slow:
            several = ", ".join(name for name in STRATEGIES if name != "single")
            raise UserError(
                f"strategy 'single' runs on one device, --devices is {placement.devices}; valid for several: {several}"
                if placement.devices != 1
                else "strategy 'single' has no other rank to be slower than; leave --slow out"
            )
        return Session(placement) if placement.device_kind == "slice" else InProcess(placement)
    if isinstance(strategy, DataParallel) and strategy.engine == "threads":
        if torch.cuda.device_count() < max(2, placement.devices) or placement.devices < 2:
            raise UserError(
                f"data-parallel:engine=threads is torch.nn.DataParallel, for 2 or more CUDA devices; --devices is "
                f"{placement.devices} and this machine has {torch.cuda.device_count()}; use data-parallel"
            )
        return InProcess(placement)
    return TorchrunSession(placement) if under_torchrun() else Session(placement)
