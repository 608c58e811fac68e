"""Ctrl-C between steps, not inside one: the step under way ends, so that its checkpoint is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """`requested` after the first Ctrl-C; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.before: Any = None

    def __enter__(self) -> Interrupt:
        # A rank leaves Ctrl-C to its launcher.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self.before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
