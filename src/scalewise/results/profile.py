"""What one device costs on one workload: a JSON file, written with torch, read without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.atomic import write_atomically
from scalewise.errors import UserError, in_our_words
from scalewise.results.printable import Printable
from scalewise.results.units import bytes_text, seconds_text


class LayerCost(BaseModel):
    """One layer, per sample."""

    model_config = ConfigDict(frozen=True)

    name: str
    parameter_bytes: NonNegativeInt
    activation_bytes: NonNegativeInt
    flops: NonNegativeInt


class StepCost(BaseModel):
    """Seconds of one step at one per-device batch; the loss counts as forward."""

    model_config = ConfigDict(frozen=True)

    batch: PositiveInt
    forward: NonNegativeFloat
    backward: NonNegativeFloat
    update: NonNegativeFloat
    load: NonNegativeFloat
    ready: tuple[float, ...] = ()
    """When, as a fraction of backward, each parameter's gradient is complete, in order of completion."""
    step_seconds: NonNegativeFloat | None = None
    """The median measured step, which the parts sum to."""
    peak_memory_bytes: NonNegativeInt | None = None

    @property
    def seconds(self) -> float:
        return self.load + self.forward + self.backward + self.update


class InStep(BaseModel):
    """So many devices at once, each doing the same, meeting in every step as in training: the slowest counts."""

    model_config = ConfigDict(frozen=True)

    devices: PositiveInt
    steps: tuple[StepCost, ...]


class ProfileDocument(BaseModel):
    """The file format."""

    model_config = ConfigDict(frozen=True)

    workload: str
    device: str
    execution: str
    samples_per_epoch: PositiveInt
    parameter_bytes: NonNegativeInt
    layers: tuple[LayerCost, ...]
    steps: tuple[StepCost, ...]
    input_bytes: NonNegativeInt = 0
    """Of one sample; 0: nothing worth counting."""
    footprint: dict[str, Any] = {}
    """What plans are made from, tensor by tensor (scalewise.plan.Footprint); empty: one for every layer."""
    least_seconds: NonNegativeFloat = 0.0
    """Of a step, however few its samples: estimated, where one figure is all that is known."""
    epoch_told: bool = True
    """Whether anybody said how many samples make an epoch; else it is one step."""
    source: str = ""
    """In words, where it was not measured."""
    in_step: tuple[InStep, ...] = ()
    """By numbers of devices, where they share something: slices of a GPU, cores of a processor."""
    precision: str = "fp32"
    data: str = ""
    versions: dict[str, str] = {}
    measured_at: str = ""
    """ISO 8601, in UTC; empty where it was not measured here."""


class Profile(Printable):
    """A profile that prints, reads and writes itself."""

    def __init__(self, document: ProfileDocument, note: str = "") -> None:
        self.document = document
        self.note = note
        """Where it comes from, if it was not just measured."""

    @classmethod
    def read(cls, path: Path) -> Profile:
        try:
            return cls(ProfileDocument.model_validate_json(path.read_bytes()))
        except OSError as error:
            raise UserError(f"cannot read the profile {path}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise UserError(f"{path} is not a profile: {where}: {in_our_words(first['msg'])}") from None

    def write(self, path: Path) -> None:
        write_atomically(path, self.document.model_dump_json(indent=2).encode() + b"\n")

    def to_json(self) -> dict[str, Any]:
        return self.document.model_dump(mode="json")

    def __rich__(self) -> RenderableType:
        document = self.document
        heading = Text.assemble(
            (document.workload, "bold"),
            f" on one device ({document.device}), {document.execution}, {document.precision}; "
            f"{bytes_text(document.parameter_bytes)} of parameters, {document.samples_per_epoch:,} samples per epoch",
        )
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("batch", "load", "forward", "backward", "update", "step", "sample", "epoch", "memory"):
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
            parts += [Text(), Text("a step of so many devices at once, which meet in every one:"), self._in_step()]
        return Group(*parts, *([Text(self.note, "dim")] if self.note else []))

    def _in_step(self) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("batch", *(str(each.devices) for each in self.document.in_step)):
            table.add_column(title, justify="right", no_wrap=True)
        for steps in zip(*(each.steps for each in self.document.in_step), strict=False):
            table.add_row(str(steps[0].batch), *(seconds_text(step.seconds) for step in steps))
        return table
