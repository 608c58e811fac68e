"""Planned bytes of gloo's collectives equal the kernel's byte counters of real ranks."""

from __future__ import annotations

import datetime
import multiprocessing.connection
import os
import socket
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.hardware.collectives import BACKENDS, received_bytes, sends, sent_bytes
from scalewise.runtime.byte_counters import available, snapshot

pytestmark = pytest.mark.skipif(not available(), reason="the kernel does not count bytes by connection")

# One element, small and large tensors, a size that no number of ranks divides, one with several segments per chunk.
SIZES_BYTES = [4, 4096, 65_536, 1_000_004, 9_000_000, 64 * 1024 * 1024]
DEADLINE_SECONDS = 30
TIMEOUT = datetime.timedelta(seconds=DEADLINE_SECONDS)


def collect(operation: str, ranks: int, size_bytes: int, root: int) -> None:
    """Take part in one collective over a float32 tensor of `size_bytes`, or its shards."""
    rank, after_root = dist.get_rank(), (root + 1) % ranks
    whole = torch.empty(size_bytes // 4)
    shard = torch.empty(-(-whole.numel() // ranks))
    shards = [torch.empty_like(shard) for _ in range(ranks)]
    if operation == "broadcast":
        dist.broadcast(whole, root)
    elif operation == "reduce":
        dist.reduce(whole, root)
    elif operation == "all_reduce":
        dist.all_reduce(whole)
    elif operation == "all_gather":
        dist.all_gather(shards, shard)
    elif operation == "reduce_scatter":
        # torch 2.13 renamed reduce_scatter_tensor.
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        reduce_scatter(shard, torch.cat(shards))
    elif operation == "gather":
        dist.gather(shard, shards if rank == root else None, dst=root)
    elif operation == "scatter":
        dist.scatter(shard, shards if rank == root else None, src=root)
    elif operation == "send" and rank == root:
        dist.send(whole, after_root)
    elif operation == "send" and rank == after_root:
        dist.recv(whole, root)


def serve(rank: int, ranks: int, port: int, orders: multiprocessing.connection.Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=TIMEOUT)
    while (order := orders.recv()) is not None:
        if order == "count":
            flows = snapshot(except_port=port).connections.values()
            orders.send((sum(flow.sent_bytes for flow in flows), sum(flow.received_bytes for flow in flows)))
        else:
            collect(*order)
            orders.send("done")
    dist.destroy_process_group()


class Ranks:
    """Running gloo ranks that execute one order at a time; an order ends when every rank has answered."""

    def __init__(self, ranks: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            self.store = TCPStore(
                "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        self.size = ranks
        self.orders = []
        self.processes = []
        for rank in range(ranks):
            own_end, rank_end = context.Pipe()
            process = context.Process(target=serve, args=(rank, ranks, port, rank_end), daemon=True)
            process.start()
            rank_end.close()  # so that the death of the rank closes the pipe
            self.orders.append(own_end)
            self.processes.append(process)

    def ask(self, order: object) -> list[tuple[int, int]]:
        for pipe in self.orders:
            pipe.send(order)
        answers = []
        for rank, pipe in enumerate(self.orders):
            assert pipe.poll(DEADLINE_SECONDS), f"rank {rank} did not answer"
            answers.append(pipe.recv())
        return answers

    def traffic(self, operation: str, size_bytes: int, root: int) -> list[tuple[int, int]]:
        """Return the bytes that each rank sent and received."""
        before = self.ask("count")
        self.ask((operation, self.size, size_bytes, root))
        after = self.ask("count")
        return [
            (sent - sent_before, received - received_before)
            for (sent, received), (sent_before, received_before) in zip(after, before, strict=True)
        ]

    def close(self) -> None:
        for pipe in self.orders:
            pipe.send(None)
        for process in self.processes:
            process.join(DEADLINE_SECONDS)


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    running = Ranks(request.param)
    yield running
    running.close()


@pytest.mark.parametrize("operation", BACKENDS["gloo"])
def test_planned_bytes_equal_counted_bytes(ranks: Ranks, operation: str) -> None:
    for size_bytes in SIZES_BYTES:
        for root in (0, ranks.size - 1) if size_bytes < 10_000_000 else (1,):
            planned = sends("gloo", operation, ranks.size, size_bytes, root)
            expected = [(sent_bytes(planned, rank), received_bytes(planned, rank)) for rank in range(ranks.size)]
            assert ranks.traffic(operation, size_bytes, root) == expected, (size_bytes, root)
