"""Options that several commands share, with one wording each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in name with options (linear, unet:width=16; see `scalewise list workloads`), "
        "path/to/file.py:function, or package.module:function.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
DeviceKind = Annotated[
    Literal["auto", "cpu", "cuda", "slice"],
    typer.Option("--device-kind", help="cpu: a core per device. cuda: a GPU per device. slice: parts of one GPU."),
]
DataPath = Annotated[
    Path | None,
    typer.Option("--data", help="Folder or file with the data; else found or generated.", show_default=False),
]
Samples = Annotated[
    int | None, typer.Option("--samples", help="Use only the first so many samples.", show_default=False)
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input", metavar="3x224x224", help="What one sample of your nn.Module looks like.", show_default=False
    ),
]
Classes = Annotated[
    int | None,
    typer.Option("--classes", help="How many classes your nn.Module tells apart.", show_default=False),
]
Precision = Annotated[
    Literal["fp32", "tf32", "bf16"], typer.Option("--precision", help="What the matrix units compute in.")
]
Execution = Annotated[
    Literal["eager", "graph", "auto"], typer.Option("--execution", help="graph: the whole step as one CUDA graph.")
]
Load = Annotated[
    str,
    typer.Option("--load", help="auto, device, stream:workers=4, or files (every sample from its file, each epoch)."),
]
Hosts = Annotated[int, typer.Option("--hosts", help="Rehearse so many hosts (network namespaces; needs root).")]
Link = Annotated[
    str | None, typer.Option("--link", help="Speed of the rehearsed hosts' links: 1gbit, 200mbit.", show_default=False)
]
Slow = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="RANK=SHARE", help="Give a rank part of its core: 1=0.5.", show_default=False),
]
SlicePercent = Annotated[
    int | None,
    typer.Option("--slice-percent", help="Share of the GPU per slice. [default: 100 / devices]", show_default=False),
]
CoresPerDevice = Annotated[int, typer.Option("--cores-per-device", help="Cores, and threads, of a cpu device.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds that ranks wait for one that hangs.")]
