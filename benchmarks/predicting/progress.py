"""How far measuring is, and what is left of the time."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from predicting.quiet import say
from scalewise.results.units import seconds_text


@dataclass
class Progress:
    blocks: int
    budget_seconds: float | None
    started: float = field(default_factory=perf_counter)
    begun: int = 0
    round: int = 0
    group: tuple[str, str] | None = None
    spent: bool = False

    def goes_on(self, workload: str, link: str) -> bool:
        """Asked before every block: whether there is time for it. Told at every workload and link."""
        gone = perf_counter() - self.started
        self.spent = self.budget_seconds is not None and gone > self.budget_seconds
        if self.spent:
            say(f"the budget of {self.budget_seconds:g} s is spent: {self.blocks - self.begun} blocks are left")
            return False
        if self.group != (workload, link):
            self.group = workload, link
            self._tell(gone)
        self.begun += 1
        return True

    def _tell(self, gone: float) -> None:
        left = seconds_text(gone / self.begun * (self.blocks - self.begun)) if self.begun else "?"
        workload, link = self.group or ("", "")
        say(
            f"round {self.round}: {workload}, {link}; block {self.begun + 1} of {self.blocks}, "
            f"{seconds_text(gone)} gone, left: about {left}"
        )
