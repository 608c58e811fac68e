"""The comparison of CPU and GPU, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from scalewise.experiments.gpu_vs_cpu_probes import Task
from scalewise.figures.style import COLOURS, INK, MARKERS, batch_axis, new_figure, number_text, save, styled

LOOKS = {"cpu": INK, "gpu": COLOURS[0], "copy": COLOURS[1]}


@styled
def draw(
    GBps: Mapping[str, float],
    convolution: Mapping[str, Mapping[int, float]],
    tasks: Sequence[Task],
    busy: Mapping[str, float],
    cores: int,
    machine: str,
    out: Path,
    note: str = "",
) -> list[Path]:
    """Four panels; without a GPU there is nothing to set bars beside, and their numbers are in the subtitle."""
    products = [task for task in tasks if task.kind == "product"]
    if "gpu" not in GBps:
        numbers = f"Memory is copied at {GBps['cpu']:.3g} GB/s; training keeps {busy['cpu']:.2g} of {cores} cores busy."
        figure, [layer, product] = new_figure(
            "The CPU half: there is no GPU here", machine, columns=2, width=9.2, height=4.0, subtitle=note or numbers
        )
    else:
        figure, [memory, layer, product, free] = new_figure(
            "CPU and GPU", machine, rows=2, columns=2, width=9.2, height=7.0, subtitle=note
        )
        _bars(memory, GBps, "copying memory", "GB/s, read and written")
        _bars(free, busy, "cores busy while a convolution trains", "cores")
        free.set_ylim(0, max(cores, *busy.values()) * 1.12)
    _layer(layer, convolution)
    _tasks(product, products)
    return save(figure, out, "gpu-vs-cpu")


def _bars(axes: Axes, values: Mapping[str, float], title: str, label: str) -> None:
    names = [name.upper() for name in values]
    bars = axes.bar(names, list(values.values()), color=[LOOKS[name] for name in values], width=0.5)
    axes.bar_label(bars, [number_text(value) for value in values.values()], padding=2)
    axes.set_title(title)
    axes.set_ylabel(label)
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_ylim(0, max(values.values()) * 1.12)
    axes.grid(axis="y")


def _layer(axes: Axes, convolution: Mapping[str, Mapping[int, float]]) -> None:
    batches = list(convolution["cpu"])
    if "gpu" in convolution:
        values = [convolution["cpu"][batch] / convolution["gpu"][batch] for batch in batches]
        axes.plot(batches, values, color=LOOKS["gpu"], marker=MARKERS[0])
        axes.axhline(1, color=INK, linewidth=1)
        axes.set_title("convolution layer: GPU over CPU speed")
        axes.set_ylabel("times as fast")
    else:
        values = [batch / convolution["cpu"][batch] for batch in batches]
        axes.plot(batches, values, color=LOOKS["cpu"], marker=MARKERS[0])
        axes.set_title("convolution layer on the CPU")
        axes.set_ylabel("clips per second")
    axes.set_ylim(0, max(*values, 1.0) * 1.08)
    axes.set_xlabel("batch size")
    axes.grid(axis="y")
    batch_axis(axes, batches, 2)


def _tasks(axes: Axes, tasks: Sequence[Task]) -> None:
    sizes = [task.size for task in tasks]
    lines = {"cpu": [task.cpu_seconds for task in tasks]}
    if all(task.gpu_seconds is not None for task in tasks):
        lines["gpu"] = [task.gpu_seconds or 0 for task in tasks]
        lines["copy"] = [task.copy_seconds or 0 for task in tasks]
    labels = {"cpu": "on the CPU", "gpu": "on the GPU", "copy": "copies there and back"}
    for number, (name, seconds) in enumerate(lines.items()):
        axes.plot(sizes, seconds, color=LOOKS[name], marker=MARKERS[number], label=labels[name])
    batch_axis(axes, sizes, 2)
    axes.set_yscale("log")
    axes.set_title("product of two square matrices" + ("" if len(lines) > 1 else ", on the CPU"))
    axes.set_xlabel("rows and columns")
    axes.set_ylabel("seconds")
    axes.grid(axis="y")
    if len(lines) > 1:
        axes.legend(loc="upper left")
