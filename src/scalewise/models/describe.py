"""`scalewise describe`: layers, parameters, memory and flops of a workload."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from scalewise.core.arguments import checked
from scalewise.core.units import Printable
from scalewise.models.given_workload import given_workload
from scalewise.models.inspection import Layer, count
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.predict.roofline import Roofline

MB = 2**20
"""Bytes per MB in the study's tables."""


@dataclass(frozen=True)
class Description(Printable):
    """Parameters, memory and flops of a workload for one sample. A multiply-add counts as two flops."""

    workload: str
    parameters: int
    parameter_bytes: int
    input_bytes: int
    forward_backward_bytes: int
    """Bytes of the outputs of all layers and of their gradients."""
    flops_per_sample: int
    """Flops of the forward pass."""
    training_flops_per_sample: int
    """Flops of the forward and backward pass."""
    layers: tuple[Layer, ...]
    counted_on: str
    """Device of the count: 'meta' (nothing was computed), or 'cpu' if the model needs a real sample."""
    modules: int
    """Number of innermost modules."""
    module_calls: int
    """Calls of innermost modules in forward."""
    roofline: Roofline | None = None
    """Lower bound of the seconds of a training step; None if no GPU is given."""
    step_seconds: float | None = None
    """Measured seconds of a step, to compare with the bound."""

    def to_json(self) -> dict[str, Any]:
        document = dataclasses.asdict(dataclasses.replace(self, roofline=None))
        for name in ("counted_on", "modules", "module_calls", "roofline", "step_seconds"):
            del document[name]
        if self.roofline:
            document["roofline"] = self.roofline.to_json(self.step_seconds)
        for layer in document["layers"]:
            layer["output_shape"] = list(layer["output_shape"])
        return {**document, "layers": list(document["layers"])}

    def records(self) -> list[dict[str, Any]]:
        return list(self.to_json()["layers"])

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
        note = [Text("Counted on one real sample, because the model does not run on torch's meta device.", "yellow")]
        parts: list[RenderableType] = [
            Text(self.workload, "bold"),
            table,
            Text(),
            totals,
            *(note if self.counted_on == "cpu" else []),
        ]
        return Group(*parts, *([Text(), self.roofline.text(self.step_seconds)] if self.roofline else []))

    def _totals(self) -> list[tuple[str, str]]:
        return [
            ("Total parameters", f"{self.parameters:,}"),
            ("Input size (MB)", f"{self.input_bytes / MB:.2f}"),
            ("Forward/backward pass size (MB)", f"{self.forward_backward_bytes / MB:.2f}"),
            ("Parameter size (MB)", f"{self.parameter_bytes / MB:.2f}"),
            ("Forward flops per sample", f"{self.flops_per_sample:,}"),
            ("Training flops per sample", f"{self.training_flops_per_sample:,}"),
        ]


@checked
def describe(
    workload: str | Workload | nn.Module,
    input_shape: str | tuple[int, ...] | None = None,
    classes: int | None = None,
) -> Description:
    """Count the parameters, memory and flops of a model, layer by layer, for one sample.

    Args:
        workload: A built-in name ("unet:width=16"), "path/to/file.py:function", an nn.Module or a `scalewise.Workload`.
        input_shape: Shape of one sample without the batch, (3, 224, 224) or "3x224x224". Needed for an nn.Module and
            for a function that returns one.
        classes: Number of classes. Needed for a function that returns an nn.Module.

    Returns:
        A `Description`: `parameters`, `parameter_bytes`, `flops_per_sample` and `layers`. It prints as a table;
        `to_dict()` and `to_dataframe()` return its numbers.

    Examples:
        >>> description = scalewise.describe("linear")
        >>> description.parameters
        12102220
    """
    given, shape, classes = given_workload(workload, input_shape, classes)
    workload = resolve(given, shape, classes) if isinstance(given, str) else given
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
        modules=counts.modules,
        module_calls=counts.module_calls,
    )
