"""Which kind of session a strategy runs in."""

from __future__ import annotations

from dataclasses import replace

import torch

from scalewise.errors import UserError
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement
from scalewise.session.served import ServedSession
from scalewise.session.session import Session
from scalewise.session.torchrun import TorchrunSession, under_torchrun
from scalewise.strategies.central_storage import CentralStorage
from scalewise.strategies.data_parallel import DataParallel
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.registry import STRATEGIES
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy
from scalewise.training.serving import serve_task

AnySession = Session | TorchrunSession | InProcess | ServedSession


def open_session(strategy: Strategy, placement: Placement) -> AnySession:
    """One device, and torch's own DataParallel, need no other process; torchrun has started its own already."""
    if isinstance(strategy, (ParameterServer, ParameterServerAsync)):
        return _with_servers(strategy, placement)
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
    if isinstance(strategy, Hybrid):
        strategy.check_devices(placement.devices)
    if isinstance(strategy, CentralStorage):
        return _around_one_memory(placement)
    return TorchrunSession(placement) if under_torchrun() else Session(placement)


def _around_one_memory(placement: Placement) -> AnySession:
    session: AnySession
    if under_torchrun():
        session = TorchrunSession(placement)
    elif placement.devices == 1 and placement.device_kind != "slice" and not placement.slow:
        session = InProcess(placement)
    else:
        session = Session(placement)
    if session.placement.hosts > 1:
        raise UserError(
            f"central-storage keeps the weights in the memory of one machine, and these are "
            f"{session.placement.hosts} hosts; use --hosts 1, or --strategy mirrored"
        )
    return session


def _with_servers(strategy: ParameterServer | ParameterServerAsync, placement: Placement) -> ServedSession:
    if under_torchrun():
        raise UserError(
            f"{strategy.name} starts servers beside its workers and cannot under torchrun; use mirrored, or leave "
            "torchrun out"
        )
    placement = replace(placement, servers=strategy.servers)
    if isinstance(strategy, ParameterServerAsync) and not strategy.exact:
        return ServedSession(placement, serve_task, independent=True, replacements=strategy.replacements)
    return ServedSession(placement, serve_task)
