"""Progress of measuring, and the time budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from predicting.quiet import say
from scalewise.core.units import seconds_text


@dataclass
class Progress:
    blocks: int
    budget_seconds: float | None
    started: float = field(default_factory=perf_counter)
    started_blocks: int = 0
    round: int = 0
    group: tuple[str, str] | None = None
    spent: bool = False

    def next_block(self, workload: str, link: str) -> bool:
        """Return whether there is time for the next block. Print the progress at every new workload and link."""
        elapsed = perf_counter() - self.started
        self.spent = self.budget_seconds is not None and elapsed > self.budget_seconds
        if self.spent:
            say(
                f"the budget of {self.budget_seconds:g} s is spent: {self.blocks - self.started_blocks} blocks are left"
            )
            return False
        if self.group != (workload, link):
            self.group = workload, link
            self._print(elapsed)
        self.started_blocks += 1
        return True

    def _print(self, elapsed: float) -> None:
        left = (
            seconds_text(elapsed / self.started_blocks * (self.blocks - self.started_blocks))
            if self.started_blocks
            else "?"
        )
        workload, link = self.group or ("", "")
        say(
            f"round {self.round}: {workload}, {link}; block {self.started_blocks + 1} of {self.blocks}, "
            f"{seconds_text(elapsed)} elapsed, about {left} left"
        )
