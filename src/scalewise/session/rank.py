"""The life of a rank's process: settle in, do one task after another, and never outlive the launcher."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from scalewise.session import hosts, quota, script
from scalewise.session.crew import Crew
from scalewise.session.failure import from_exception
from scalewise.session.placement import Placement
from scalewise.session.worker import Worker, join, serve_from_host, take_device
from scalewise.step.lifeline import end_with_owner
from scalewise.step.room import MEMORY_LIMIT

Result = TypeVar("Result")

STOP = b""
SHOW_STACK = signal.SIGUSR1


@dataclass(frozen=True)
class Orders:
    """What all ranks are told at birth."""

    placement: Placement
    crew: Crew
    channels: tuple[Connection, ...]
    """Each rank's end of its pipe to the launcher. Inherited, not connected to: it works from any network namespace,
    has no name that could be left behind, and nobody else can speak on it."""
    hosts: tuple[hosts.Host, ...]
    quotas: Mapping[int, Path]
    environment: Mapping[str, str]


def live(orders: Orders) -> None:
    """Entry point of every rank under the elastic agent, which has set RANK, WORLD_SIZE and the store's address."""
    die_with_launcher()
    # Loaders of data are forked from a process of the rank's own: with torch in it, once, not in each of them.
    forkserver.set_forkserver_preload(["scalewise.step.feed"])
    rank = int(os.environ["RANK"])
    channel = orders.channels[rank]
    for other in orders.channels:
        if other is not channel:
            other.close()
    faulthandler.register(SHOW_STACK, file=channel.fileno(), all_threads=False)
    # The launcher's stdout is for its one answer; whatever a rank prints is a log.
    os.dup2(2, 1)
    who = orders.crew.who(rank)
    _show_in_lists(who)
    worker = _attempt(channel, rank, who, partial(_settle_in, orders, rank, channel))
    channel.send_bytes(pickle.dumps(("result", None)))
    while (order := channel.recv_bytes()) != STOP:
        channel.send_bytes(_attempt(channel, rank, who, partial(_do, worker, order)))
    dist.destroy_process_group()


def _show_in_lists(who: str) -> None:
    """As 'sw server 0' in `ps -e -o pid,comm` and `top`: all ranks have their forkserver's command line."""
    with suppress(OSError):  # only Linux has this file
        Path("/proc/self/comm").write_text(f"sw {who}")


def die_with_launcher() -> None:
    end_with_owner()
    # Ctrl-C reaches every process of the terminal, but it is the launcher that decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _settle_in(orders: Orders, rank: int, channel: Connection) -> Worker:
    os.environ.pop(MEMORY_LIMIT, None)  # the launcher's of now, not of when the forkserver was started
    os.environ.update(orders.environment)
    placement, crew = orders.placement, orders.crew
    number = crew.first + rank
    os.environ["SCALEWISE_SERVER" if crew.role == "server" else "SCALEWISE_RANK"] = str(number)
    host = placement.host_of(number) if crew.role != "server" else placement.hosts + number
    interface = "lo"
    if orders.hosts:
        hosts.enter(orders.hosts[host])
        interface = orders.hosts[host].interface
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
    if crew.role != "server" and number in orders.quotas:
        quota.join(orders.quotas[number])
    device = take_device(placement, number, placement.devices) if crew.role != "server" else serve_from_host()
    return join(placement, device, host, lambda told: channel.send_bytes(pickle.dumps(("report", told))), crew)


def _do(worker: Worker, order: bytes) -> bytes:
    """Plain pickle on purpose: multiprocessing's own would pass tensors by descriptors that die with this process."""
    found, work = pickle.loads(order)
    if found:
        script.run_again(found)
    task, arguments = pickle.loads(work)
    answer = pickle.dumps(("result", task(worker, *arguments)))
    if worker.device.type == "cuda":
        torch.cuda.empty_cache()
    return answer


def _attempt(channel: Connection, rank: int, who: str, work: Callable[[], Result]) -> Result:
    """The work's result, or word of its failure to the launcher, which then ends all ranks.

    Until that happens this one keeps its connections: peers should wait, not fail of a broken one and hide the cause.
    """
    try:
        return work()
    except BaseException as error:
        channel.send_bytes(pickle.dumps(("failure", from_exception(rank, error, who))))
        while True:
            signal.pause()
