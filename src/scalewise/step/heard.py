"""How much of what an allocator gave out is there, where other threads give some of it back unheard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """What the whole process has in use at some moment."""

    heap_bytes: int
    step_ended: bool = False
    """Whoever works beside is done by then: what the process has beyond what was heard of is its own, and stays."""


@dataclass
class Live:
    """Bytes that are there, followed event by event."""

    bytes: int
    heap_bytes: int
    """Of the process, at the start."""
    most: int = 0
    heard: int = 0
    unheard: int = 0
    """Given back by others, as far as it was seen. It never comes back: a process that has more in use for a while has
    lent it to a thread of its own."""

    def follow(self, events: Iterable[int | Seen]) -> None:
        """Bytes that come, bytes that go (negative), and what was seen between them."""
        self.most = max(self.most, self.bytes)
        for event in events:
            if isinstance(event, Seen):
                self._see(event)
            else:
                self.heard += event
                self.bytes += event
                self.most = max(self.most, self.bytes)

    def _see(self, seen: Seen) -> None:
        gone = max(0, self.heard - (seen.heap_bytes - self.heap_bytes) - self.unheard)
        self.unheard += gone
        self.bytes -= gone
        if seen.step_ended:
            self.heap_bytes = seen.heap_bytes - self.heard + self.unheard
