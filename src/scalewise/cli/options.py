"""Options that several commands share, with one wording each, in panels that say what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

DATA, WHERE, LEARNING, SPEED, KEPT = "The data", "Where it runs", "How it learns", "How it is computed", "What is kept"


def option(panel: str, *names: str, **more: Any) -> Any:
    """An option in a panel; without a default to show, none is shown."""
    return typer.Option(*names, rich_help_panel=panel, **{"show_default": True, **more})


WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in name with options (linear, unet:width=16; see `scalewise list workloads`), "
        "path/to/file.py:function, package.module:function, or hf:NAME.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]

DataPath = Annotated[
    Path | None, option(DATA, "--data", help="Folder or file with the data.", show_default="found or generated")
]
Samples = Annotated[
    int | None, option(DATA, "--samples", help="Use only so many, spread over all.", show_default="all")
]
InputShape = Annotated[
    str | None,
    option(DATA, "--input", metavar="3x224x224", help="One sample of your nn.Module.", show_default=False),
]
Classes = Annotated[
    int | None, option(DATA, "--classes", help="Classes that your nn.Module tells apart.", show_default=False)
]

DeviceKind = Annotated[
    Literal["auto", "cpu", "cuda", "slice"],
    option(WHERE, "--device-kind", help="cpu: a core per device. cuda: a GPU per device. slice: parts of one GPU."),
]
Hosts = Annotated[int, option(WHERE, "--hosts", help="Rehearse so many hosts (network namespaces; needs root).")]
Link = Annotated[
    str | None, option(WHERE, "--link", help="Speed of the rehearsed links: 1gbit, 200mbit.", show_default=False)
]
Slow = Annotated[
    list[str] | None,
    option(WHERE, "--slow", metavar="RANK=SHARE", help="Give a rank part of its core: 1=0.5.", show_default=False),
]
SlicePercent = Annotated[
    int | None, option(WHERE, "--slice-percent", help="Share of the GPU per slice.", show_default="100 / devices")
]
CoresPerDevice = Annotated[int, option(WHERE, "--cores-per-device", help="Cores, and threads, of a cpu device.")]
Timeout = Annotated[
    float, option(WHERE, "--timeout", help="Seconds that ranks wait for one that hangs; at their start 30 or more.")
]

Precision = Annotated[
    Literal["fp32", "tf32", "bf16"], option(SPEED, "--precision", help="What the matrix units compute in.")
]
Execution = Annotated[
    Literal["eager", "graph", "auto"], option(SPEED, "--execution", help="graph: the whole step as one CUDA graph.")
]
Load = Annotated[
    str,
    option(SPEED, "--load", help="auto, device, stream:workers=4, or files: every sample from its file, each epoch."),
]
