"""Main loop of a rank process, and the import of the user's script in it."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from scalewise.core.errors import UserError
from scalewise.launch import cpu_cores
from scalewise.launch.emulated_hosts import Host, enter_host
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.rank_failure import from_exception
from scalewise.launch.worker import Worker, join_process_group, serve_from_host, take_device
from scalewise.runtime import byte_counters
from scalewise.runtime.device_memory import MEMORY_LIMIT
from scalewise.runtime.process_settings import end_with_owner

_running_main_script = False


@contextmanager
def hide_main_script() -> Iterator[None]:
    """Hide the main script, so that processes started in this block do not run it."""
    main: Any = sys.modules["__main__"]
    attributes = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    vars(main).update(dict.fromkeys(attributes))
    try:
        yield
    finally:
        vars(main).update(attributes)


def packed(work: object) -> bytes:
    """Pickle a task and its arguments for the ranks; raise UserError if a definition cannot be imported by them."""
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = next(iter(re.findall(r"<(?:function|class) '?([\w.<>]+)'?|'([\w.<>]+)'", str(error))), ("", ""))
        definition = f"'{''.join(name)}'" if any(name) else "a part of the workload"
        raise UserError(
            f"{definition} cannot be sent to other processes ({' '.join(str(error).split())}); define it at the top "
            "level of a file, not inside a function and not as a lambda, or train on one device"
        ) from error


def script_needed_by(order: bytes) -> dict[str, Any]:
    """Return how a rank finds the main script, or an empty dict if this pickle does not refer to it."""
    if b"__main__" not in order:
        return {}
    script = {key: value for key, value in spawn.get_preparation_data("").items() if key.startswith("init_main")}
    if not script or not Path(script.get("init_main_from_path", __file__)).is_file():
        raise UserError(
            "definitions in a notebook or at a prompt cannot be sent to other processes; move them to a file and "
            "import it"
        )
    return script


def run_main_script(script: dict[str, Any]) -> None:
    """Run the main script on a rank, once and under the name '__mp_main__', so that a `__main__` guard is false."""
    global _running_main_script
    _running_main_script = True
    try:
        spawn.prepare(script)
    finally:
        _running_main_script = False


def refuse_nested_session() -> None:
    """Raise UserError if a rank that runs the main script tries to start ranks itself."""
    if _running_main_script:
        raise UserError(
            "ranks run this script too, because the task is defined in it; "
            "put the code that starts the session under: if __name__ == '__main__':"
        )


Result = TypeVar("Result")

STOP = b""
SHOW_STACK = signal.SIGUSR1


@dataclass(frozen=True)
class RanksOnHost:
    """Ranks of a group that a real host starts."""

    host: int
    """Number of the host."""
    numbers: tuple[int, ...]
    """Numbers of the ranks within their group."""
    slots: tuple[int, ...]
    """Number of each rank's device on this host."""
    devices: int
    """Number of devices that the session uses on this host."""
    interface: str
    """Network interface that connects the hosts."""
    command_port: int
    """Port on which the command listens for its ranks."""


@dataclass(frozen=True)
class RankSetup:
    """Settings that all ranks of a group receive when they start."""

    placement: Placement
    group: RankGroup
    channels: tuple[Connection, ...]
    """Each rank's end of its pipe to the launcher. An inherited pipe works in any network namespace, leaves no name
    behind and cannot be opened by other processes."""
    hosts: tuple[Host, ...]
    quotas: Mapping[int, Path]
    environment: Mapping[str, str]
    store: str | None = None
    """Path of the session's store; None if ranks connect to torch's store at MASTER_ADDR."""
    on_host: RanksOnHost | None = None
    """Ranks of this host, if the group has ranks on several real hosts; `channels` are those of these ranks."""


def run_rank(setup: RankSetup) -> None:
    """Run a rank; the elastic agent has set RANK, WORLD_SIZE and the address of the store."""
    die_with_launcher()
    gc.freeze()  # objects of imported modules live until the end: collections need not look at them, which takes 0.2 s
    # Data loader processes are forked from a forkserver of this rank, so that torch is loaded once and not in each.
    forkserver.set_forkserver_preload(["scalewise.runtime.feed"])
    local = int(os.environ["RANK"])
    rank = setup.on_host.numbers[local] if setup.on_host else local
    channel = setup.channels[local]
    for other in setup.channels:
        if other is not channel:
            other.close()
    faulthandler.register(SHOW_STACK, file=channel.fileno(), all_threads=False)
    # The launcher writes its result to stdout; output of ranks is a log.
    os.dup2(2, 1)
    name = setup.group.process_name(rank)
    _set_process_name(name)
    worker = _attempt(channel, rank, name, partial(_set_up, setup, rank, local, channel))
    channel.send_bytes(pickle.dumps(("result", None)))
    while (order := channel.recv_bytes()) != STOP:
        channel.send_bytes(_attempt(channel, rank, name, partial(_run_task, worker, order)))
    dist.destroy_process_group()


def _set_process_name(name: str) -> None:
    """Name the process 'sw server 0' in `ps -e -o pid,comm` and `top`; the command line is that of the forkserver."""
    with suppress(OSError):  # exists on Linux only
        Path("/proc/self/comm").write_text(f"sw {name}")


def die_with_launcher() -> None:
    end_with_owner()
    # Ctrl-C reaches every process of the terminal, and a scheduler may send SIGTERM to every process of a job; only the
    # launcher handles them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _set_up(setup: RankSetup, rank: int, local: int, channel: Connection) -> Worker:
    os.environ.pop(MEMORY_LIMIT, None)  # may be outdated: inherited from the forkserver
    os.environ.update(setup.environment)
    placement, group = setup.placement, setup.group
    number = group.first + rank
    os.environ["SCALEWISE_SERVER" if group.role == "server" else "SCALEWISE_RANK"] = str(number)
    slot, devices = number, placement.devices
    if setup.on_host:
        host, slot, devices = setup.on_host.host, setup.on_host.slots[local], setup.on_host.devices
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(group.count)
        # NCCL chooses among fast networks itself.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", setup.on_host.interface)
        byte_counters.ignored_ports.add(setup.on_host.command_port)
    else:
        host = placement.host_of(number) if group.role != "server" else placement.hosts + number
        interface = "lo"
        if setup.hosts:
            enter_host(setup.hosts[host])
            interface = setup.hosts[host].interface
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
    if group.role != "server" and number in setup.quotas:
        cpu_cores.join_cgroup(setup.quotas[number])
    device = take_device(placement, slot, devices) if group.role != "server" else serve_from_host()

    def report(value: object) -> None:
        channel.send_bytes(pickle.dumps(("report", value)))

    return join_process_group(placement, device, host, report, group, setup.store)


def _run_task(worker: Worker, order: bytes) -> bytes:
    """Run the task and return its pickled result.

    Uses plain pickle: the pickler of multiprocessing passes tensors as descriptors that are lost when this process
    ends.
    """
    script, work = pickle.loads(order)
    if script:
        run_main_script(script)
    task, arguments = pickle.loads(work)
    answer = pickle.dumps(("result", task(worker, *arguments)))
    if worker.device.type == "cuda":
        torch.cuda.empty_cache()
    return answer


def _attempt(channel: Connection, rank: int, name: str, work: Callable[[], Result]) -> Result:
    """Return the result of `work`, or send its failure to the launcher, which then ends all ranks.

    Until then this process keeps its connections open: peers that failed from a broken connection would hide the cause.
    """
    try:
        return work()
    except BaseException as error:
        channel.send_bytes(pickle.dumps(("failure", from_exception(rank, error, name))))
        while True:
            signal.pause()
