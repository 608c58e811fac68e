"""Profile: step times of one device on one workload, as a JSON file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.core.errors import UserError, in_our_words
from scalewise.core.files import read_limited, write_atomically
from scalewise.core.units import Printable, bytes_text, seconds_text

MOST_BYTES = 16 * 2**20
"""Largest profile that is read."""
_CONFIG = ConfigDict(frozen=True, allow_inf_nan=False)
Bytes = Annotated[int, Field(ge=0, le=10**18)]
Count = Annotated[int, Field(gt=0, le=10**12)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class LayerCost(BaseModel):
    """Size and compute of one layer; activations and flops are per sample."""

    model_config = _CONFIG

    name: str
    parameter_bytes: Bytes
    activation_bytes: Bytes
    flops: Annotated[int, Field(ge=0, le=10**24)]
    module: str = ""
    """Path of the layer's module in the model; empty: not known."""


class StepCost(BaseModel):
    """Seconds of one step at one batch per device. The loss counts as forward."""

    model_config = _CONFIG

    batch: Count
    forward: Seconds
    backward: Seconds
    update: Seconds
    load: Seconds
    ready: tuple[Annotated[float, Field(ge=0, le=1 + 1e-6)], ...] = ()
    """Time at which each parameter's gradient is complete, as a fraction of backward, in order of completion."""
    step_seconds: Seconds | None = None
    """Median of the measured steps; the phases sum to it."""
    peak_memory_bytes: Bytes | None = None
    uncertainty: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=1, le=1e6)]] = (1.0, 1.0)
    """90 % interval as factors of the seconds, if the step was predicted from a specification or scaled."""

    @field_validator("ready")
    @classmethod
    def _ascending(cls, ready: tuple[float, ...]) -> tuple[float, ...]:
        if any(later < earlier for earlier, later in pairwise(ready)):
            raise ValueError("it must be in ascending order")
        return ready

    @property
    def seconds(self) -> float:
        return self.load + self.forward + self.backward + self.update


class InStep(BaseModel):
    """Step times while `devices` devices run the same steps and synchronise in each; the slowest device counts."""

    model_config = _CONFIG

    devices: Count
    steps: tuple[StepCost, ...]
    hosts: Count = 1
    """Number of hosts that the devices were on."""


class ProfileDocument(BaseModel):
    """JSON document of a profile."""

    model_config = _CONFIG

    workload: str
    device: str
    execution: str
    samples_per_epoch: Annotated[int, Field(gt=0, le=10**15)]
    parameter_bytes: Bytes
    layers: tuple[LayerCost, ...]
    steps: tuple[StepCost, ...]
    input_bytes: Bytes = 0
    """Bytes of one input sample; 0 if they are negligible."""
    footprint: dict[str, Any] = {}
    """Sizes of the model's tensors that plans need (scalewise.strategies.plan.Footprint); if empty, plans assume one
    tensor per layer."""
    least_seconds: Seconds = 0.0
    """Estimated time of a step with very few samples, for profiles that are known from one figure only."""
    epoch_told: bool = True
    """Whether the number of samples per epoch is known; if not, an epoch is one step."""
    source: str = ""
    """Description of the source, if the profile was not measured."""
    quality: Literal["measured", "calibrated", "scaled", "specification"] = "measured"
    """Origin of the step times: a profile of this device, one measured step on it, a profile of another device, or the
    specification of the device."""
    training_flops: Annotated[float, Field(ge=0, le=1e24)] = 0.0
    """Flops of matrix products and convolutions per sample, forward and backward; 0 if they were not counted."""
    module_calls: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Calls of innermost modules in forward; 0: one per layer."""
    modules: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Number of innermost modules, which is less than `module_calls` if some are called several times; 0: that of the
    layers, or `module_calls`."""
    ran_batch: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Largest batch per device that is known to run, if it is larger than those of the steps."""
    in_step: tuple[InStep, ...] = ()
    """Step times of several devices at once, for devices that share hardware: slices of a GPU, cores of a processor,
    emulated hosts."""
    precision: str = "fp32"
    data: str = ""
    versions: dict[str, str] = {}
    measured_at: str = ""
    """Time of the measurement: ISO 8601, in UTC; empty if the profile was not measured on this machine."""


def _problem_of(document: ProfileDocument) -> str | None:
    """Explain why no time can be predicted from a profile; None if it can."""
    if not document.steps:
        return "steps: it must have at least one step"
    in_layers = sum(layer.parameter_bytes for layer in document.layers)
    if in_layers > 2 * document.parameter_bytes:  # shared weights count in several layers
        return (
            f"layers: their parameters sum to {in_layers:,} bytes, but parameter_bytes is {document.parameter_bytes:,}"
        )
    for name, steps in (
        ("steps", document.steps),
        *((f"in_step.{number}.steps", concurrent.steps) for number, concurrent in enumerate(document.in_step)),
    ):
        batches = [step.batch for step in steps]
        if len(set(batches)) < len(batches):
            return f"{name}: a batch occurs twice"
        for number, step in enumerate(steps):
            if step.seconds <= 0:
                return f"{name}.{number}: the phases sum to 0 seconds"
    return None


class Profile(Printable):
    """Profile that can be printed, read and written."""

    def __init__(self, document: ProfileDocument, note: str = "") -> None:
        self.document = document
        self.note = note
        """Origin of a profile that was not just measured, such as the cache."""

    @classmethod
    def read(cls, path: Path) -> Profile:
        try:
            document = ProfileDocument.model_validate_json(read_limited(path, MOST_BYTES))
        except OSError as error:
            raise UserError(f"cannot read the profile {path}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise UserError(f"{path} is not a profile: {where}: {in_our_words(first['msg'])}") from None
        if problem := _problem_of(document):
            raise UserError(f"{path} is not a profile: {problem}")
        return cls(document)

    def write(self, path: Path) -> None:
        write_atomically(path, self.document.model_dump_json(indent=2).encode() + b"\n")

    def to_json(self) -> dict[str, Any]:
        return self.document.model_dump(mode="json")

    def records(self) -> list[dict[str, Any]]:
        return list(self.to_json()["steps"])

    def __rich__(self) -> RenderableType:
        document = self.document
        heading = Text.assemble(
            (document.workload, "bold"),
            f" on one device ({document.device}), {document.execution}, {document.precision}; "
            f"{bytes_text(document.parameter_bytes)} of parameters, {document.samples_per_epoch:,} samples per epoch",
        )
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        headings = ("batch", "load", "forward", "backward", "update", "step", "per sample", "epoch", "peak memory")
        for title in headings:
            table.add_column(title, justify="right", no_wrap=True)
        for step in document.steps:
            steps_per_epoch = -(-document.samples_per_epoch // step.batch)
            table.add_row(
                str(step.batch),
                *(seconds_text(part) for part in (step.load, step.forward, step.backward, step.update, step.seconds)),
                seconds_text(step.seconds / step.batch),
                seconds_text(step.seconds * steps_per_epoch),
                bytes_text(step.peak_memory_bytes) if step.peak_memory_bytes else "-",
            )
        parts: list[RenderableType] = [heading, Text(), table]
        if document.in_step:
            parts += [Text(), Text("step time while several devices run at once:"), self._concurrent_table()]
        return Group(*parts, *([Text(self.note, "dim")] if self.note else []))

    def _concurrent_table(self) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        counts = [concurrent.devices for concurrent in self.document.in_step]
        for title in ("batch", *(f"{count} device{'s' if count > 1 else ''}" for count in counts)):
            table.add_column(title, justify="right", no_wrap=True)
        for steps in zip(*(concurrent.steps for concurrent in self.document.in_step), strict=False):
            table.add_row(str(steps[0].batch), *(seconds_text(step.seconds) for step in steps))
        return table
