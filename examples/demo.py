"""The study's effect on this machine: one device beside two, for a model that chokes on its network and one that gains."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

import scalewise
from scalewise.results.units import seconds_text

RUNS = {"linear": {"batch": 10, "steps": 40}, "conv": {"batch": 20, "steps": 12}}


def main() -> None:
    console = Console(highlight=False)
    console.print("Two models of spoken digits, each on one device and on two (a device here is a CPU core).\n")
    table = Table(box=None, header_style="dim", padding=(0, 3, 0, 0))
    for title in ("workload", "parameters", "batch", "one device", "two devices", "speed-up", "sent per step", ""):
        table.add_column(title, justify="left" if title in ("workload", "") else "right")
    for name, run in RUNS.items():
        with console.status(f"{name} on one device, then on two"):
            one = scalewise.train(name, device_kind="cpu", **run)
            two = scalewise.train(name, strategy="mirrored", devices=2, device_kind="cpu", **run)
        speedup = one.step_seconds.median / two.step_seconds.median
        reduce = two.phases["reduce"] / sum(two.phases.values())
        verdict = "[green]gains" if speedup > 1.05 else "[red]chokes" if speedup < 0.95 else "breaks even"
        table.add_row(
            name,
            f"{one.parameters:,}",
            str(one.batch),
            seconds_text(one.step_seconds.median),
            seconds_text(two.step_seconds.median),
            f"{speedup:.2f}x",
            f"{two.bytes_per_step.planned / 2**20:.1f} MiB",
            f"{verdict}[/]: {reduce:.0%} of a step waits for gradients",
        )
    console.print(table)
    console.print(f"\nData: {one.data}. See where a step's time goes: .venv/bin/scalewise train linear --strategy mirrored --devices 2")


if __name__ == "__main__":
    main()
