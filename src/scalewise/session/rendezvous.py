"""Where ranks find each other: a store on one address of ours, never on every interface as torchrun's."""

from __future__ import annotations

import socket
from datetime import timedelta
from uuid import uuid4

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

LOOPBACK = "127.0.0.1"


def open_store(address: str, timeout_seconds: float) -> TCPStore:
    """A store that listens on a free port of this address only.

    The port is bound before torch hears of it, so that nobody can take it in between; the socket belongs to the network
    namespace of the thread that calls.
    """
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        return TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
            master_listen_fd=server.detach(),
        )


class StoreRendezvous(RendezvousHandler):
    """An agent has no other to wait for: it hands out the store, which its ranks share and other crews may too."""

    def __init__(self, store: TCPStore, crew: str) -> None:
        self._store = store
        self._crew = crew
        self._run_id = uuid4().hex

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        own = PrefixStore(f"agent/{self._crew}", self._store)
        return RendezvousInfo(own, 0, 1, RendezvousStoreInfo(self._store.host, self._store.port))

    def get_backend(self) -> str:
        return "scalewise"

    def get_run_id(self) -> str:
        return self._run_id

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True
