"""Processes of a run on real hosts: the first one runs the command, and an agent on every host starts ranks for it.

    host 0   rank 0: command, agent     ranks 1, 2, ...: idle
    host 1   rank 4: agent              ranks 5, 6, ...: idle

torchrun starts one process per device. The ranks that train are other processes, which the agents start for every
session. So a command can open many sessions of different sizes, and a rank that dies does not end the run.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from threading import Lock, Thread
from typing import Any

import psutil
import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from scalewise.core.errors import RunFailed
from scalewise.launch import rank_process
from scalewise.launch.elastic_agent import Agent
from scalewise.launch.forkserver import load_for_ranks
from scalewise.launch.host_pool import SECRET, GroupOrder, HostPool, connect
from scalewise.launch.real_hosts import JOIN_SECONDS, LOST, Launch, RealHost, RealHosts, commanding

LOOPBACK = "127.0.0.1"
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def command_or_agent(launch: Launch, command: Callable[[], None]) -> None:
    """Run the command on the first host; on the others serve it until it ends, and exit with its exit code."""
    load_for_ranks()
    store = _open_store(launch)
    for name in _OF_TORCHRUN:  # otherwise ranks and the command would take themselves for a rank of torchrun
        os.environ.pop(name, None)
    if launch.host:
        sys.exit(_serve_from(launch, store))
    code = LOST
    try:
        pool = _gather_hosts(launch, store)
    except RunFailed as error:
        print(f"scalewise: {error}", file=sys.stderr)
        sys.exit(LOST)
    try:
        with commanding(pool.hosts):
            command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else LOST
        raise
    finally:
        pool.close(code)


def _open_store(launch: Launch) -> PrefixStore:
    """Connect to the store of torchrun; without one, the first host opens it on the address of the run only."""
    listening: dict[str, Any] = {}
    if not launch.has_store and launch.host == 0:
        address = socket.gethostbyname(launch.address)
        server = socket.create_server((address, launch.port))
        listening = {"is_master": True, "wait_for_workers": False, "master_listen_fd": server.detach()}
    store = TCPStore(launch.address, launch.port, timeout=timedelta(seconds=JOIN_SECONDS), **listening)
    return PrefixStore(f"scalewise/{launch.attempt}", store)


def _describe_host(launch: Launch) -> dict[str, Any]:
    """Describe this host; `reached` is the address of the first host as this one resolves it."""
    with socket.create_connection((launch.address, launch.port)) as probe:
        address, reached = probe.getsockname()[0], probe.getpeername()[0]
    return {
        "name": platform.node() or f"host {launch.host}",
        "address": address,
        "reached": reached,
        "interface": interface_of(address),
        "devices": launch.local_ranks,
        "gpus": torch.cuda.device_count(),
    }


def interface_of(address: str) -> str:
    """Return the network interface with this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    raise RunFailed(f"no network interface of {platform.node()} has the address {address}")


def _gather_hosts(launch: Launch, store: PrefixStore) -> HostPool:
    """Wait until all hosts have joined, and connect to their agents."""
    own = _describe_host(launch)
    described = [own]
    for number in range(1, launch.hosts):
        try:
            described.append(json.loads(store.get(f"host/{number}")))
        except torch.distributed.DistStoreError:
            raise RunFailed(f"host {number} of {launch.hosts} did not join within {JOIN_SECONDS:g} s") from None
    if launch.hosts > 1:
        # On Debian the first host resolves its own name to a loopback address that other hosts cannot reach.
        own["address"] = described[1]["reached"]
        own["interface"] = interface_of(own["address"])
    names = [host["name"] for host in described]
    hosts = [
        RealHost(
            number,
            host["name"] if names.count(host["name"]) == 1 else f"{host['name']} (host {number})",
            host["address"],
            host["interface"],
            host["devices"],
            host["gpus"],
        )
        for number, host in enumerate(described)
    ]
    address = hosts[0].address if len(hosts) > 1 else LOOPBACK
    secret = os.environ.get(SECRET, "").encode() or os.urandom(32)
    pool = HostPool(RealHosts(hosts, None), address, secret)
    offer = {"address": address, "port": pool.port}
    if SECRET not in os.environ:
        offer["secret"] = secret.hex()
    Thread(target=_serve_own_host, args=(address, pool.port, secret), name="host-agent", daemon=True).start()
    store.set("command", json.dumps(offer))
    pool.wait_for_hosts(JOIN_SECONDS)
    return pool


def _serve_own_host(address: str, port: int, secret: bytes) -> None:
    HostAgent(0, (address, port), secret).serve()


def _serve_from(launch: Launch, store: PrefixStore) -> int:
    """Serve the command on another host; return its exit code."""
    # A scheduler may signal every process of a job; the command decides when the run ends.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    store.set(f"host/{launch.host}", json.dumps(_describe_host(launch)))
    try:
        offer = json.loads(store.get("command"))
        secret = os.environ[SECRET].encode() if SECRET in os.environ else bytes.fromhex(offer["secret"])
        with rank_process.hide_main_script():
            return HostAgent(launch.host, (offer["address"], offer["port"]), secret).serve()
    except (OSError, EOFError, RuntimeError) as error:
        print(f"scalewise: host {launch.host} ({platform.node()}) lost the first host: {error}", file=sys.stderr)
        return LOST


class HostAgent:
    """Starts and ends the ranks of this host on request of the command."""

    def __init__(self, host: int, address: tuple[str, int], secret: bytes) -> None:
        self._host, self._address, self._secret = host, address, secret
        self._control = connect(address, secret, ("host", host))
        self._sending = Lock()
        self._agents: dict[int, Agent] = {}

    def serve(self) -> int:
        """Serve requests until the command ends; return its exit code."""
        try:
            while True:
                kind, *arguments = pickle.loads(self._control.recv_bytes())
                if kind == "end":
                    return int(arguments[0])
                getattr(self, f"_on_{kind}")(*arguments)
        except (EOFError, OSError):
            return LOST
        finally:
            for agent in self._agents.values():
                agent.kill()

    def _on_start(self, order: GroupOrder) -> None:
        Thread(target=self._start, args=(order,), name=f"group-{order.number}", daemon=True).start()

    def _start(self, order: GroupOrder) -> None:
        """Start ranks, each with a connection to the command of its own, and report when they have ended."""
        channels: list[Connection] = []
        try:
            for rank in order.ranks.numbers:
                channels.append(connect(self._address, self._secret, ("rank", order.number, rank)))
            store = TCPStore(*order.store, timeout=timedelta(seconds=JOIN_SECONDS))
            agent = Agent(store, order.setup(channels))
            self._agents[order.number] = agent
            # Only the ranks may keep their channels open, so that these close when a rank ends.
            while not agent.has_started and not agent.join(0.01):
                pass
            for channel in channels:
                channel.close()
            wait([agent.ended])
            exits = {order.ranks.numbers[rank]: code for rank, code in agent.exits().items()}
            self._send("ended", order.number, exits)
        except Exception as error:
            self._send("failed", order.number, f"{type(error).__name__}: {error}")
        finally:
            for channel in channels:
                with suppress(OSError):
                    channel.close()
            self._agents.pop(order.number, None)

    def _on_signal(self, group: int, rank: int, number: int) -> None:
        if agent := self._agents.get(group):
            agent.signal(signal.Signals(number), rank)

    def _on_kill(self, group: int) -> None:
        if agent := self._agents.get(group):
            Thread(target=agent.kill, daemon=True).start()

    def _send(self, *message: object) -> None:
        with self._sending, suppress(OSError):
            self._control.send_bytes(pickle.dumps(message))
