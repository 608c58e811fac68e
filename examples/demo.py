"""The study's effect on this machine: a model that chokes on its network, and one that gains from a second device."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

import scalewise
from scalewise.results.units import bytes_text, seconds_text

RUNS = {"linear": {"batch": 10, "steps": 40}, "conv": {"batch": 20, "steps": 12}}


def main() -> None:
    console = Console(highlight=False)
    console.print("Two models of spoken digits, each on one device, then on two. A device here is a CPU core.\n")
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("model", "weights", "one device", "two devices", "speed-up", "waiting", "verdict"):
        table.add_column(title, justify="left" if title in ("model", "verdict") else "right")
    verdicts = []
    for name, run in RUNS.items():
        with console.status(f"{name}: one device, then two") as status:
            one = scalewise.train(name, device_kind="cpu", **run)
            status.update(f"{name}: one device {seconds_text(one.step_seconds.median)} per step; now two")
            two = scalewise.train(name, strategy="mirrored", devices=2, device_kind="cpu", **run)
        speedup = one.step_seconds.median / two.step_seconds.median
        word, style = (
            ("gains", "green") if speedup > 1.05 else ("chokes", "red") if speedup < 0.95 else ("even", "yellow")
        )
        waiting = two.phases["reduce"] / sum(two.phases.values())
        weights = one.parameters * 4
        table.add_row(
            name,
            bytes_text(weights),
            f"{seconds_text(one.step_seconds.median)}",
            f"{seconds_text(two.step_seconds.median)}",
            f"{speedup:.2f}x",
            f"{waiting:.0%}",
            f"[{style}]{word}[/]",
        )
        verdicts.append(f"{name} {word} ({speedup:.2f}x at batch {one.batch})")
    console.print(table)
    console.print("\nTimes are of one training step; waiting: the part that waits for the other device's gradients.")
    console.print(f"Found: with a second device {' and '.join(verdicts)}. Data: {one.data}.")
    console.print("Look closer: .venv/bin/scalewise train linear --strategy mirrored --devices 2 --batch 10 --steps 40")


if __name__ == "__main__":
    main()
