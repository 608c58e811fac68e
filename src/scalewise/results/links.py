"""What `scalewise doctor --save` measured between the devices of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from scalewise.results.printable import Printable
from scalewise.results.units import bytes_text, seconds_text


@dataclass(frozen=True)
class MeasuredOperation:
    """One operation over so many devices: its constants, and the points that they were fitted to.

    Where caches make a difference an operation has two of these; `from_bytes` of the whole tensor on this one holds.
    """

    operation: str
    devices: int
    hosts: int
    from_bytes: int
    latency_us: float
    GBps: float
    error_percent: float
    points: tuple[tuple[int, float], ...]
    """Bytes of the whole tensor, and seconds."""


@dataclass(frozen=True)
class Join:
    """GPUs, or groups of them, and what joins them."""

    joined_by: str
    members: tuple[str | Join, ...]


@dataclass(frozen=True)
class LinkReport(Printable):
    """The machine as a cluster, in words; the cluster itself is the TOML file."""

    name: str
    device: str
    devices: int
    hosts: int
    link: str | None
    backend: str
    operations: Sequence[MeasuredOperation]
    together: float | None
    """How many times as long two transfers take as one; None: one device."""
    shared: bool
    beside_network: float | None
    """How many times as long compute takes beside an all-reduce."""
    beside_compute: float
    beside_memory: float
    host_copy_GBps: float
    """What one device copies from and to host memory while all do."""
    topology: Join | None
    """None: no NVIDIA GPU."""
    refused: Sequence[str] = field(default_factory=tuple)
    path: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> RenderableType:
        return Group(*self._parts())

    def _parts(self) -> Iterator[RenderableType]:
        where = f" on {self.hosts} rehearsed hosts joined by {self.link}" if self.hosts > 1 else ""
        yield Text.assemble((self.name, "bold"), f": {self.devices} x {self.device}{where}, {self.backend}")
        yield Text()
        yield _tree(self.topology) if self.topology else Text("no NVIDIA GPU here, so no topology to show", "dim")
        yield Text()
        if self.operations:
            yield _table(self.operations)
            yield Text()
        yield from (Text(sentence) for sentence in self.sentences)
        yield from (Text(sentence, "yellow") for sentence in self.refused)
        if self.path:
            yield Text()
            yield Text(f"written to {self.path}")

    @property
    def sentences(self) -> list[str]:
        said = []
        if self.together is not None:
            same = "they share one channel" if self.shared else "each has a channel of its own"
            said.append(f"Two transfers at once take {self.together:.2f} times as long as one: {same}.")
        if self.beside_network is not None:
            said.append(f"Compute beside an all-reduce takes {self.beside_network:.2f} times as long.")
        if self.devices > self.hosts:
            said.append(
                f"While all devices of a host work, multiplying takes {self.beside_compute:.2f} times as long and "
                f"streaming through memory {self.beside_memory:.2f} times."
            )
        said.append(f"A device copies {self.host_copy_GBps:.3g} GB/s from and to host memory.")
        return said


def _table(operations: Sequence[MeasuredOperation]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("operation", no_wrap=True)
    for title in ("n", "from", "latency", "bandwidth", "fit", "largest"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in operations:
        size, taken = each.points[-1]
        table.add_row(
            each.operation,
            str(each.devices),
            bytes_text(each.from_bytes) if each.from_bytes else "",
            seconds_text(each.latency_us * 1e-6),
            f"{each.GBps:.3g} GB/s",
            f"±{each.error_percent:.0f} %",
            f"{bytes_text(size)} in {seconds_text(taken)}",
        )
    return table


def _tree(join: Join) -> Tree:
    tree = Tree(join.joined_by)
    _grow(tree, join)
    return tree


def _grow(tree: Tree, join: Join) -> None:
    for member in join.members:
        if isinstance(member, Join):
            _grow(tree.add(member.joined_by), member)
        else:
            tree.add(member)
