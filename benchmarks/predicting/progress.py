"""How far measuring is, what a round took, and what is left of the time."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from predicting.quiet import say
from scalewise.results.units import seconds_text


@dataclass
class Progress:
    blocks: int
    rounds: int
    budget_seconds: float | None
    started: float = field(default_factory=perf_counter)
    begun: int = 0
    link: str = ""
    round: int = -1
    round_started: float = 0.0

    def goes_on(self, link: str, number: int) -> bool:
        """Asked before every block: whether there is time for it. Told about twenty times, and at every round."""
        gone = perf_counter() - self.started
        if self.budget_seconds is not None and gone > self.budget_seconds:
            say(f"the budget of {self.budget_seconds:g} s is spent: {self.blocks - self.begun} blocks are left")
            return False
        fresh = (self.link, self.round) != (link, number)
        if fresh:
            self._tell_round()
            self.link, self.round, self.round_started = link, number, perf_counter()
        if fresh or self.begun % max(1, self.blocks // 20) == 0:
            self._tell(gone)
        self.begun += 1
        return True

    def end(self) -> None:
        self._tell_round()
        say(f"{self.begun} of {self.blocks} blocks in {seconds_text(perf_counter() - self.started)}")

    def _tell_round(self) -> None:
        if self.round >= 0:
            say(f"{self.link}: round {self.round + 1} took {seconds_text(perf_counter() - self.round_started)}")

    def _tell(self, gone: float) -> None:
        left = seconds_text(gone / self.begun * (self.blocks - self.begun)) if self.begun else "?"
        budget = f", {self.budget_seconds - gone:.0f} s of the budget" if self.budget_seconds is not None else ""
        say(
            f"{self.link}: round {self.round + 1} of {self.rounds}, block {self.begun + 1} of {self.blocks}, "
            f"{seconds_text(gone)} gone, left: about {left}{budget}"
        )
