"""Draw one diagram per strategy into docs/images/: what every device keeps, what is sent, and a simulated step.

The diagrams come from the plans and the simulator that `scalewise advise` uses. The model is the built-in
`transformer`; its times are round numbers (STEPS), so that the same commands draw the same diagrams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import scalewise
from scalewise.core.units import bytes_text
from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.predict.predictor import Predictor
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Operation, Plan
from scalewise.strategies.registry import STRATEGIES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
WORKLOAD, BATCH, DEVICES = "transformer", 64, 4
STEPS = tuple(
    StepCost(batch=batch, forward=1e-4 * batch, backward=2e-4 * batch, update=5e-4, load=0.0) for batch in (1, BATCH)
)
"""0.1 ms forward and 0.2 ms backward per sample, 0.5 ms update."""
DEVICE = Device("GPU", DEVICES, memory_GB=24, peak_TFLOPS=30, memory_GBps=900, launch_us=0, host_memory_GBps=40)
LINKS = (Link("devices", "link", 4.0, 10), Link("host-device", "link", 8.0, 5), Link("hosts", "link", 4.0, 10))
ASYNCHRONOUS_SECONDS = 0.024
"""End of the timeline of asynchronous workers, which have no common step."""

KEPT = {
    "single": ["the whole model"],
    "data-parallel": ["weights, optimizer", "copy for one step"],
    "mirrored": ["the whole model"],
    "ring": ["the whole model"],
    "parameter-server": ["copy of the weights"] * 4 + ["weights, optimizer"],
    "parameter-server-async": ["copy of the weights"] * 4 + ["weights, optimizer"],
    "central-storage": ["a layer at a time"] * 4 + ["weights, optimizer"],
    "layers": ["first layers", "next layers", "next layers", "last layers"],
    "pipeline": ["first layers", "next layers", "next layers", "last layers"],
    "tensor": ["part of every layer"],
    "hybrid": ["half of every layer"],
    "sharded": ["a quarter of all"],
}
"""What each rank keeps between steps; the last text is that of all further ranks."""
NAMES = {"parameter-server": "server", "parameter-server-async": "server", "central-storage": "host memory"}
"""Name of the rank after the devices."""

SEND_LABELS = {phase: phase for phase in ("scatter", "gather", "push", "pull")}
"""Texts of point-to-point sends by phase; others are 'send'."""

INK, FAINT, RULE, TRANSFER = "#1F2328", "#57606A", "#D8DEE4", "#CC79A7"
COLOURS = {"forward": "#56B4E9", "backward": "#E69F00", "update": "#009E73"}
"""Okabe-Ito palette."""
LEFT, WIDTH, TOP, ROW, LANE, BAR = 262, 880, 34, 52, 20, 12
"""Pixels: start of the timeline, width of the image, its top, height of a row, of compute and of transfers in it."""
BOX_LEFT, BOX_WIDTH = 76, 172


@dataclass(frozen=True)
class Bar:
    """A coloured interval of one rank."""

    rank: int
    phase: str
    start: float
    end: float
    transfer: bool


def schematic_cluster() -> Cluster:
    return Cluster("example", 1, DEVICES, (DEVICE,), LINKS)


def schematic_profile() -> ProfileDocument:
    """Return the profile of the workload with round times."""
    profile = scalewise.advise(WORKLOAD, cluster="4 x rtx-3090", batch=[BATCH], strategy=["mirrored"]).profile
    return profile.model_copy(update={"steps": STEPS, "least_seconds": 0.0})


def diagram_of(strategy: Strategy, profile: ProfileDocument) -> str:
    """Return the diagram of a strategy as SVG."""
    predictor = Predictor(profile, schematic_cluster())
    devices = 1 if strategy.reference else DEVICES
    step = predictor.simulate(strategy, devices, BATCH)
    end = ASYNCHRONOUS_SECONDS if strategy.asynchronous else step.step_seconds
    timed = zip(step.operations, step.starts, step.ends, strict=True)
    bars = [bar for operation, start, finish in timed for bar in bars_of(operation, start, min(finish, end))]
    bars = joined((bar for bar in bars if bar.end - bar.start > 1e-9), end / (WIDTH - LEFT))
    one_round = strategy.rounds(predictor.footprint, devices, BATCH, 1) if strategy.asynchronous else None
    sent = bytes_between(one_round or Plan(step.operations))
    ranks = devices + bool(NAMES.get(strategy.name))
    return _Drawing(strategy, ranks, devices, bars, end, sent).svg()


def bars_of(operation: Operation, start: float, end: float) -> Iterator[Bar]:
    """Yield a bar for every rank that takes part in an operation."""
    if operation.send or operation.collective:
        collective = operation.collective
        label = collective.operation.replace("_", "-") if collective else SEND_LABELS.get(operation.phase, "send")
        for rank in sorted({rank for send in Plan((operation,)).sends for rank in (send.source, send.target)}):
            yield Bar(rank, label, start, end, transfer=True)
    else:
        for rank in range(operation.rank, operation.rank + operation.count):
            yield Bar(rank, operation.phase, start, end, transfer=False)


def joined(bars: Iterable[Bar], gap: float) -> list[Bar]:
    """Join bars of the same phase if both are hardly visible, or transfers that touch; `gap` is what a pixel shows."""
    result: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.rank, bar.transfer, bar.start)):
        last = result[-1] if result else bar
        same = (last.rank, last.transfer, last.phase) == (bar.rank, bar.transfer, bar.phase)
        small = max(last.end - last.start, bar.end - bar.start) < 4 * gap
        if result and same and bar.start - last.end < (2 * gap if small else 0.1 * gap if bar.transfer else -1):
            result[-1] = replace(last, end=max(last.end, bar.end))
        else:
            result.append(bar)
    return result


def bytes_between(plan: Plan) -> dict[tuple[int, int], int]:
    """Return the bytes that each rank sends to each other rank; messages without content are left out."""
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for send in plan.sends:
        sent[send.source, send.target] += send.bytes
    return {pair: count for pair, count in sent.items() if count > 4096}


class _Drawing:
    """SVG of one strategy."""

    def __init__(
        self,
        strategy: Strategy,
        ranks: int,
        devices: int,
        bars: Sequence[Bar],
        end: float,
        sent: dict[tuple[int, int], int],
    ) -> None:
        self.strategy, self.ranks, self.devices = strategy, ranks, devices
        self.bars, self.end, self.sent = bars, end, sent
        self.height = TOP + ranks * ROW + 58
        self.parts: list[str] = []

    def svg(self) -> str:
        self._headings()
        self._arrows()
        for rank in range(self.ranks):
            self._device(rank)
        self._bars()
        self._axis()
        self._legend()
        title = f"{self.strategy.name}: what each device keeps, what is sent, and the timeline of a step"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" font-family="Helvetica, Arial, sans-serif" role="img">\n'
            f"<title>{escape(title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{TRANSFER}"/></marker></defs>\n'
            f'<rect width="{WIDTH}" height="{self.height}" fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )

    def _text(self, x: float, y: float, text: str, size: int = 12, colour: str = INK, anchor: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def _rect(self, x: float, y: float, width: float, height: float, fill: str, more: str = "") -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'
        )

    def _headings(self) -> None:
        unit = "the first steps" if self.strategy.asynchronous else "one step"
        self._text(BOX_LEFT, 18, "what each device keeps" if self.sent else "device", 12, FAINT)
        self._text(LEFT, 18, f"timeline of {unit}, global batch {BATCH}", 12, FAINT)

    def _top(self, rank: int) -> float:
        return TOP + rank * ROW

    def _device(self, rank: int) -> None:
        kept = KEPT.get(self.strategy.name, [""])
        name = f"device {rank}" if rank < self.devices else NAMES[self.strategy.name]
        top = self._top(rank)
        self._rect(BOX_LEFT, top, BOX_WIDTH, ROW - 14, "#F6F8FA", f' stroke="{FAINT}" rx="5"')
        self._text(BOX_LEFT + 10, top + 16, name, 12)
        self._text(BOX_LEFT + 10, top + 31, kept[min(rank, len(kept) - 1)], 11, FAINT)
        self.parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{top + LANE + BAR + 4}" y2="{top + LANE + BAR + 4}" '
            f'stroke="{RULE}"/>'
        )

    def _arrows(self) -> None:
        """Draw an arc at the left of the boxes for every pair of ranks that exchange data."""
        pairs = {(min(pair), max(pair)) for pair in self.sent}
        for low, high in sorted(pairs):
            both = (low, high) in self.sent and (high, low) in self.sent
            start, end = (low, high) if (low, high) in self.sent else (high, low)
            shift = 5 * (end - start) if abs(end - start) > 1 else 0
            y1, y2 = (self._top(rank) + (ROW - 14) / 2 for rank in (start, end))
            y1, y2 = y1 + shift / 2, y2 - shift / 2
            reach = BOX_LEFT - 12 - 13 * abs(end - start)
            marker = 'marker-start="url(#back)" ' if both else ""
            self.parts.append(
                f'<path d="M{BOX_LEFT} {y1:.1f} C{reach:.1f} {y1:.1f} {reach:.1f} {y2:.1f} {BOX_LEFT - 1} {y2:.1f}" '
                f'fill="none" stroke="{TRANSFER}" stroke-width="1.5" {marker}marker-end="url(#head)"/>'
            )
        if any((high, low) in self.sent for low, high in self.sent):
            self.parts.insert(
                0,
                '<defs><marker id="back" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" '
                f'orient="auto"><path d="M8 0 L0 4 L8 8 z" fill="{TRANSFER}"/></marker></defs>',
            )

    def _x(self, seconds: float) -> float:
        return LEFT + seconds / self.end * (WIDTH - 12 - LEFT)

    def _bars(self) -> None:
        """Draw all bars, as one path per colour."""
        paths: dict[str, list[str]] = defaultdict(list)
        for bar in self.bars:
            left, width = self._x(bar.start), max(self._x(bar.end) - self._x(bar.start), 0.8)
            top, height = self._top(bar.rank) + (LANE + 2 if bar.transfer else 0), BAR if bar.transfer else LANE
            colour = TRANSFER if bar.transfer else COLOURS.get(bar.phase, RULE)
            paths[colour].append(f"M{left:.1f} {top}h{width:.1f}v{height}h-{width:.1f}z")
        for colour, pieces in paths.items():
            self.parts.append(f'<path d="{"".join(pieces)}" fill="{colour}" stroke="#fff" stroke-width="0.5"/>')
        for bar in self.bars:
            size, width = (9 if bar.transfer else 11), self._x(bar.end) - self._x(bar.start)
            middle = self._top(bar.rank) + (LANE + 2 + BAR / 2 if bar.transfer else LANE / 2)
            if width > 0.56 * size * len(bar.phase) + 4:
                x = self._x((bar.start + bar.end) / 2)
                self._text(x, middle + 0.36 * size, bar.phase, size, anchor="middle")

    def _axis(self) -> None:
        y = self._top(self.ranks) + 2
        milliseconds = self.end * 1e3
        apart = next(apart for apart in (1, 2, 5, 10, 20, 50, 100) if milliseconds / apart <= 10)
        for tick in range(0, int(milliseconds) + 1, apart):
            x = self._x(tick / 1e3)
            self.parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 6}" y2="{y}" stroke="{FAINT}"/>')
            self._text(x, y + 12, str(tick), 10, FAINT, "middle")
        if self._x(int(milliseconds) // apart * apart / 1e3) < WIDTH - 45:
            self._text(WIDTH - 12, y + 12, "ms", 10, FAINT, "end")

    def _legend(self) -> None:
        y = self.height - 14
        x: float = LEFT
        colours = [*COLOURS.items()]
        if self.sent:
            colours.append(("transfer", TRANSFER))
        for phase, colour in colours:
            self._rect(x, y - 9, 11, 11, colour)
            self._text(x + 15, y, phase, 11, FAINT)
            x += 15 + 6.2 * len(phase) + 16
        if self.sent:
            self._text(BOX_LEFT, y - 16, f"sent per {'update' if self.strategy.asynchronous else 'step'},", 11, FAINT)
            self._text(BOX_LEFT, y, self._sent_text(), 11, FAINT)

    def _sent_text(self) -> str:
        """Describe the bytes of the arrows."""
        counts = sorted(self.sent.values())
        least, most = bytes_text(counts[0]), bytes_text(counts[-1])
        both_ways = any((high, low) in self.sent for low, high in self.sent)
        if least.split()[1] == most.split()[1]:
            least = least.split()[0]
        size = most if counts[0] == counts[-1] else f"{least} to {most}"
        return f"{'each arrow' if counts[0] == counts[-1] else 'arrows'}: {size}{' each way' if both_ways else ''}"


def main() -> None:
    profile = schematic_profile()
    for name, kind in STRATEGIES.items():
        strategy = kind().default_on("nccl", 1)
        path = FOLDER / f"{name}.svg"
        path.write_text(diagram_of(strategy, profile), encoding="utf-8")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    main()
