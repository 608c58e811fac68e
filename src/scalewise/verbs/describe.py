"""What a workload is made of: its layers, parameters, memory and flops, counted without computing anything."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.results.printable import Printable
from scalewise.workloads.count import Layer, count
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload

MB = 2**20
"""As the study counts."""


@dataclass(frozen=True)
class Description(Printable):
    """Bytes and flops of one sample. A multiply-add counts two flops."""

    workload: str
    parameters: int
    parameter_bytes: int
    input_bytes: int
    forward_backward_bytes: int
    """The outputs of all layers, and as much again for their gradients."""
    flops_per_sample: int
    """Forward."""
    training_flops_per_sample: int
    """Forward and backward."""
    layers: tuple[Layer, ...]
    counted_on: str
    """'meta': nothing was computed; 'cpu': the model would not run that way, and took one real sample."""

    def to_json(self) -> dict[str, Any]:
        document = dataclasses.asdict(self)
        del document["counted_on"]
        for layer in document["layers"]:
            layer["output_shape"] = list(layer["output_shape"])
        return {**document, "layers": list(document["layers"])}

    def __rich__(self) -> RenderableType:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("layer (type)", no_wrap=True)
        for title in ("output shape", "parameters", "MB", "Mflops"):
            table.add_column(title, justify="left" if title == "output shape" else "right", no_wrap=True)
        for layer in self.layers:
            shape = "[-1, " + ", ".join(map(str, layer.output_shape)) + "]"
            megabytes = f"{layer.activation_bytes / MB:.2f}"
            table.add_row(layer.name, shape, f"{layer.parameters:,}", megabytes, f"{layer.flops / 1e6:,.2f}")
        totals = Table.grid(padding=(0, 3, 0, 0))
        for name, value in self._totals():
            totals.add_row(name, value)
        note = [Text("Counted on one real sample: the model does not run on torch's meta device.", "yellow")]
        return Group(Text(self.workload, "bold"), table, Text(), totals, *(note if self.counted_on == "cpu" else []))

    def _totals(self) -> list[tuple[str, str]]:
        return [
            ("Total parameters", f"{self.parameters:,}"),
            ("Input size (MB)", f"{self.input_bytes / MB:.2f}"),
            ("Forward/backward pass size (MB)", f"{self.forward_backward_bytes / MB:.2f}"),
            ("Parameter size (MB)", f"{self.parameter_bytes / MB:.2f}"),
            ("Forward flops per sample", f"{self.flops_per_sample:,}"),
            ("Training flops per sample", f"{self.training_flops_per_sample:,}"),
        ]


def describe(workload: Workload | str, input_shape: str | None = None, classes: int | None = None) -> Description:
    """Of a Workload, or of the name of one."""
    if isinstance(workload, str):
        workload = resolve(workload, input_shape, classes)
    counts = count(workload)
    example = workload.example(1, "meta")
    return Description(
        workload=workload.name,
        parameters=sum(layer.parameters for layer in counts.layers),
        parameter_bytes=sum(layer.parameter_bytes for layer in counts.layers),
        input_bytes=example.nbytes,
        forward_backward_bytes=2 * sum(layer.activation_bytes for layer in counts.layers),
        flops_per_sample=counts.forward_flops,
        training_flops_per_sample=counts.training_flops,
        layers=counts.layers,
        counted_on=counts.device,
    )
