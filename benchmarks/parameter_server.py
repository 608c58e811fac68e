"""Push and pull of 48 MB compared with two raw transfers and with torch's RPC; servers and ring on a slow network.

    python benchmarks/parameter_server.py                      # one worker and one server, on loopback
    python benchmarks/parameter_server.py --link 200mbit       # 1 to 4 workers, each on its own emulated host
    python benchmarks/parameter_server.py --link 200mbit --figure servers-and-ring.png

On loopback the three kinds of exchange alternate between the same two processes. An exchange of the parameter server
is that of a training step: every piece of the gradients is pushed, applied by the server (plain SGD) and pulled as
weights.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

import scalewise
from scalewise.core.units import seconds_text
from scalewise.launch.devices import cpu_name
from scalewise.launch.emulated_hosts import parse_link
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement
from scalewise.launch.worker import Worker
from scalewise.parameter_server.client import Client, ServerConnection
from scalewise.parameter_server.server import Server
from scalewise.strategies.parameter_server import PIECE_MB
from scalewise.strategies.server_plan import pieces_of

BYTES = 48 * 2**20
MOST_TIMES_RAW = 1.25
WARM_UP = 3
LINEAR_BYTES = 48_408_880


def loopback(repeats: int) -> dict[str, list[float]]:
    """Seconds of every exchange, by kind."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ServedSession(Placement(1, "cpu", servers=1), serve) as session,
    ):
        [seconds] = session.run(time_exchanges, repeats, str(Path(folder) / "rpc"))
    return seconds  # type: ignore[no-any-return]


def serve(worker: Worker, repeats: int, meeting: str) -> None:
    """Server side of all three exchanges."""
    flat = torch.zeros(BYTES // 4)
    RpcServer.weights = flat.clone()
    raw = Thread(target=echo, args=(worker.shared, WARM_UP + repeats))
    raw.start()
    with rpc_between("server", 1, meeting):
        Server(
            0,
            pieces_of(flat.numel(), 4, 1, PIECE_MB),
            flat,
            lambda parameters: torch.optim.SGD(parameters, 0.01, fused=True),
            max_staleness=0,
            workers=1,
        ).serve(worker.shared)
    raw.join()


def echo(store: Store, times: int) -> None:
    """Receive a tensor and send one of the same size, `times` times."""
    weights, received = torch.zeros(BYTES // 4), torch.empty(BYTES // 4)
    connection = ServerConnection(store, "raw", "server", 600)
    for _ in range(times):
        connection.receive(received).wait()
        connection.send(weights).wait()


def time_exchanges(worker: Worker, repeats: int, meeting: str) -> dict[str, list[float]]:
    from torch.distributed import rpc

    gradients, weights = torch.ones(BYTES // 4), torch.empty(BYTES // 4)
    connection = ServerConnection(worker.shared, "raw", "worker", 600)
    seconds: dict[str, list[float]] = {"raw": [], "rpc": [], "ours": []}
    with rpc_between("worker", 0, meeting):
        client = Client(nn.Linear(BYTES // 4, 1, bias=False), worker.shared, 0, 1, PIECE_MB, 600)
        client.gradients.fill_(1.0)  # memory that was never written is one shared page of zeros, which is sent faster

        def raw() -> None:
            connection.send(gradients).wait()
            connection.receive(weights).wait()

        def by_rpc() -> None:
            rpc.rpc_sync("server", push_by_rpc, args=(gradients,))
            rpc.rpc_sync("server", pull_by_rpc)

        def ours() -> None:
            client.begin(1)
            client.awaited.clear()  # there is no backward pass that produces gradients
            for piece in reversed(range(len(client.pieces))):
                client.left[piece] = 0
                client.exchange(piece)
            client.finish_pushes()
            client.finish_pulls()

        for repeat in range(-WARM_UP, repeats):
            for kind, call in (("raw", raw), ("rpc", by_rpc), ("ours", ours)):
                started = perf_counter()
                call()
                if repeat >= 0:
                    seconds[kind].append(perf_counter() - started)
        client.leave()
    return seconds


class RpcServer:
    """Weights that torch's RPC serves."""

    weights: Tensor


def push_by_rpc(gradients: Tensor) -> None:
    RpcServer.weights.add_(gradients, alpha=-0.01)


def pull_by_rpc() -> Tensor:
    return RpcServer.weights


class rpc_between:
    """Context of torch's RPC between two processes, on loopback only and without a listening store.

    It uses TCP, as between hosts. By default, RPC sends tensors within one machine through shared memory.
    """

    def __init__(self, name: str, rank: int, meeting: str) -> None:
        self.name, self.rank, self.meeting = name, rank, meeting

    def __enter__(self) -> None:
        from torch.distributed import rpc

        os.environ["TP_SOCKET_IFNAME"] = "lo"
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{self.meeting}", rpc_timeout=600, _transports=["uv"], _channels=["basic"]
        )
        rpc.init_rpc(self.name, rank=self.rank, world_size=2, rpc_backend_options=options)

    def __exit__(self, *_: object) -> None:
        from torch.distributed import rpc

        rpc.shutdown(graceful=False)  # the server ends only after the worker has


def slow_network(link: str, steps: int, console: Console) -> list[dict[str, object]]:
    """Median step of linear on 1 to 4 workers, each on its own host, with one server, two servers and the ring."""
    transfer_seconds = LINEAR_BYTES * 8 / parse_link(link)
    rows: list[dict[str, object]] = []
    for workers in (1, 2, 3, 4):
        row: dict[str, object] = {"workers": workers, "transfer_seconds": transfer_seconds}
        for strategy in ("parameter-server", "parameter-server:servers=2", "ring"):
            if strategy == "ring" and workers == 1:
                continue
            console.print(f"  {strategy} on {workers} workers ...", style="dim")
            result = scalewise.train(
                "linear", strategy=strategy, devices=workers, hosts=workers, link=link, batch=4 * workers, steps=steps,
                device_kind="cpu", timeout_seconds=300,
            )  # fmt: skip
            row[strategy] = result.step_seconds.median
        rows.append(row)
    return rows


def show_slow_network(rows: list[dict[str, object]], link: str, console: Console) -> None:
    columns = ["parameter-server", "parameter-server:servers=2", "ring"]
    table = Table(title=f"linear (48.4 MB of parameters), links of {link}: seconds per step", title_justify="left")
    for name in ("workers", "one server", "two servers", "ring", "ring / one transfer"):
        table.add_column(name, justify="right")
    for row in rows:
        shown = [f"{row[name]:.2f}" if name in row else "-" for name in columns]
        ring = f"{row['ring'] / row['transfer_seconds']:.2f}" if "ring" in row else "-"  # type: ignore[operator]
        table.add_row(str(row["workers"]), *shown, ring)
    console.print(table)


def draw(rows: list[dict[str, object]], link: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    styles = {
        "parameter-server": ("one server", "#0072B2", "o"),
        "parameter-server:servers=2": ("two servers", "#56B4E9", "s"),
        "ring": ("ring", "#D55E00", "^"),
    }
    limit = float(2 * rows[0]["transfer_seconds"])  # type: ignore[operator]
    highest = max(float(row[strategy]) for row in rows for strategy in styles if strategy in row)  # type: ignore[arg-type]
    for strategy, (label, colour, marker) in styles.items():
        points = [(row["workers"], float(row[strategy])) for row in rows if strategy in row]  # type: ignore[arg-type]
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=label, linewidth=2)
        # Labels close to the line of the limit go below it, because the limit's own label is above.
        offset = -9 if abs(points[-1][1] - limit) < 0.05 * highest else 0
        axes.annotate(label, points[-1], xytext=(8, offset), textcoords="offset points", va="center", color=colour)
    axes.axhline(limit, color="#777777", linestyle=":", linewidth=1)
    axes.annotate(
        "two transfers", (0.92, limit), xytext=(0, 4), textcoords="offset points", color="#777777", fontsize=8
    )
    axes.set_xticks(range(1, len(rows) + 1))
    axes.set_xlim(0.9, 4.7)
    axes.set_ylim(0)
    axes.set_xlabel("workers, one per host")
    axes.set_ylabel("seconds per step")
    axes.set_title(f"Step time by number of workers: servers and ring (linear, {link} links)", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", help="use emulated hosts with links of this bandwidth instead of loopback")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8, help="steps of every run between emulated hosts")
    parser.add_argument("--figure", type=Path, help="draw the step times between emulated hosts into this file")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console()
    console.print(
        f"{os.cpu_count()} cores of {cpu_name()}, torch {torch.__version__}; load before {os.getloadavg()[0]:.2f}"
    )
    figures: object
    if options.link:
        figures = rows = slow_network(options.link, options.steps, console)
        show_slow_network(rows, options.link, console)
        if options.figure:
            draw(rows, options.link, options.figure)
    else:
        figures = seconds = loopback(options.repeats)
        raw = median(seconds["raw"])
        table = Table()
        for name in ("push and pull of 48 MiB", "seconds", "times two raw transfers"):
            table.add_column(name)
        for kind, label in (
            ("raw", "two raw transfers"),
            ("ours", "parameter server"),
            ("rpc", "torch.distributed.rpc, TCP"),
        ):
            table.add_row(label, seconds_text(median(seconds[kind])), f"{median(seconds[kind]) / raw:.2f}")
        console.print(table)
        console.print(
            f"target: at most {MOST_TIMES_RAW} times two raw transfers; measured {median(seconds['ours']) / raw:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
