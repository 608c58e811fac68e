"""How a workload is trained, whatever the strategy: the part of a run's request that every rank needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewise.errors import UserError

Precision = Literal["fp32", "tf32", "bf16"]
Execution = Literal["eager", "graph", "auto"]

MOST_PENDING_STEPS = 4096
"""Steps that may have been started but not looked at: a GPU is never waited for sooner than need be."""


@dataclass(frozen=True)
class Settings:
    """Checked by `check` before any rank starts, so that a bad value is one sentence and not N tracebacks."""

    batch: int
    """Global: the samples of one update, over all devices."""
    epochs: int | None = 1
    steps: int | None = None
    """Updates; given instead of epochs."""
    optimizer: str | None = None
    """None: the workload's own, as for the learning rate."""
    learning_rate: float | None = None
    accumulate: int = 1
    """Parts that each device's share of a batch is computed in, one after the other, before the one update."""
    seed: int = 0
    precision: Precision = "fp32"
    execution: Execution = "auto"
    load: str = "auto"
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    """Steps between checkpoints; None: at the end of every epoch."""
    resume: bool = False
    traced: bool = False
    """Whether to note what runs beside backward, for a timeline."""

    def check(self) -> None:
        """Raise a UserError for what cannot be trained on any data."""
        if self.batch < 1:
            raise UserError(f"--batch is {self.batch}; it must be at least 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed is {self.seed}; it must be a whole number from 0 to 2^63 - 1")
        for flag, value in (("--epochs", self.epochs), ("--steps", self.steps), ("--accumulate", self.accumulate)):
            if value is not None and value < 1:
                raise UserError(f"{flag} is {value}; it must be at least 1")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise UserError(f"--checkpoint-every is {self.checkpoint_every}; it must be at least 1")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise UserError(f"--learning-rate is {self.learning_rate}; it must be above 0")
        if (self.resume or self.checkpoint_every) and self.checkpoint is None:
            flag = "--resume" if self.resume else "--checkpoint-every"
            raise UserError(f"{flag} needs --checkpoint FILE to say which file")

    def check_fits(self, samples: int, source: str) -> None:
        """Raise a UserError for a batch larger than the data."""
        if self.batch > samples:
            raise UserError(
                f"--batch is {self.batch:,} but there are only {samples:,} samples ({source}); use at most that"
            )

    def total_steps(self, samples: int) -> int:
        """Updates in the whole run."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * steps_per_epoch(samples, self.batch)

    def saves_after(self, step: int, samples: int) -> bool:
        """Whether a checkpoint is due when so many steps are done: an epoch is over, or so many steps, or the run."""
        if self.checkpoint is None:
            return False
        return (
            step == self.total_steps(samples)
            or step % steps_per_epoch(samples, self.batch) == 0
            or (self.checkpoint_every is not None and step % self.checkpoint_every == 0)
        )


def steps_per_epoch(samples: int, batch: int) -> int:
    """The last batch of an epoch may be short; it is trained on, never dropped."""
    return -(-samples // batch)
