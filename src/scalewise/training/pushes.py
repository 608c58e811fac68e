"""How many steps asynchronous workers' pushes amount to."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.step.settings import steps_per_epoch


@dataclass
class Steps:
    """A step is a batch, and takes a push by every worker that it has a sample for; servers may make one version of
    several pushes, so versions tell nothing."""

    done: int
    """Before the first push that is counted."""
    samples: int
    batch: int
    workers: int
    counted: int = 0
    """Pushes of the steps that were done since."""

    def after(self, pushes: int) -> int:
        """Whole steps that are done, after so many pushes in all."""
        while self.counted + self._of(self.done) <= pushes:
            self.counted += self._of(self.done)
            self.done += 1
        return self.done

    def _of(self, step: int) -> int:
        number = step % steps_per_epoch(self.samples, self.batch)
        return min(self.batch, self.samples - number * self.batch, self.workers)
