"""The processes in the care of one agent: so many of one role, numbered from some number on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["rank", "worker", "server"]


@dataclass(frozen=True)
class Crew:
    """Ranks share a process group and fail as one; a worker with an agent of its own fails alone; servers have none of
    the devices."""

    count: int
    role: Role = "rank"
    first: int = 0
    """The number of the first of them, over all crews of the role."""
    name: str = "crew"
    """Sets its keys in the shared store apart from other crews'."""

    def who(self, local: int) -> str:
        """'server 1', as messages name it."""
        return f"{self.role} {self.first + local}"
