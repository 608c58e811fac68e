"""What a saved result of `scalewise tune` says about one device, beside the advice on several."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

from scalewise.core.training_options import GivenPrecision
from scalewise.formats.tuned import TunedKey, TunedOptions, tuned_options

if TYPE_CHECKING:
    from scalewise.formats.profile import ProfileDocument
    from scalewise.models.workload import Workload


@dataclass(frozen=True)
class Baseline:
    """What speed-ups are relative to: one device as it was profiled, and how much faster it is when tuned."""

    execution: str
    """Execution of the profiled steps: 'eager', or 'graph' on a GPU."""
    precision: str
    workload: str | None
    """Name to tune; None for a workload without a name."""
    batch: int
    tuned: TunedOptions | None = None
    """Saved tune result of the profiled device; None if there is none."""

    @property
    def first_line(self) -> str | None:
        """Sentence that stands before the verdict: 'One device tuned: 2.7x (...)'; None if tuning gained nothing."""
        tuned = self.tuned
        if tuned is None or tuned.is_plain:
            return None
        at_batch = "" if tuned.batch == self.batch else f" at batch {tuned.batch:,}"
        return f"One device tuned: {tuned.text}{at_batch}. Use it with `train --tuned`."

    @property
    def note(self) -> str:
        """One sentence on what speed-ups are relative to."""
        if self.tuned is None:
            command = "" if self.workload is None else f" (scalewise tune {quote(self.workload)} --batch {self.batch})"
            return f"Tuning one device has not been tried{command}."
        if self.tuned.is_plain:
            return f"One device was tuned: no option is faster than plain training (batch {self.tuned.batch:,})."
        return "Speed-ups are relative to one device that is not tuned."

    def to_json(self) -> dict[str, Any]:
        tuned = asdict(self.tuned) | {"label": self.tuned.options.label} if self.tuned else None
        return {"devices": 1, "execution": self.execution, "precision": self.precision, "tuned": tuned}


def baseline_of(
    workload: str | Workload | None,
    profile: ProfileDocument,
    precision: GivenPrecision,
    batch: int,
    input_shape: str | None,
    classes: int | None,
) -> Baseline:
    """Return the baseline, with the saved tune result of this workload on the profiled device."""
    if not isinstance(workload, str) or precision == "bf16-weights" or precision == "fp16-weights":
        return Baseline(profile.execution, precision, None, batch)
    result = tuned_options(TunedKey(workload, profile.device, input_shape, classes), batch, precision)
    return Baseline(profile.execution, precision, workload, batch, result)
