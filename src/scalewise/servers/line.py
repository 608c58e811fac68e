"""A line between one worker and one server: process groups of two, so that its end is nobody else's trouble."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from scalewise.errors import RunFailed
from scalewise.step.gloo_threads import let_senders_finish

HEADER_TAG = 0
PATIENT_SECONDS = 24 * 3600.0
"""A server waits for its workers however long they compute: that one hangs is for the launcher to find out."""
CONNECT_SECONDS = 600.0
"""A worker says that it comes, and comes: one that does not has died in between."""


class LineLost(Exception):
    """The other end is gone."""


class PeerSilent(RunFailed):
    """The other end is there and says nothing; it may itself be waiting for somebody."""


@contextmanager
def on_the_line() -> Iterator[None]:
    """Around nothing but what is done on a line: gloo's errors are plain RuntimeErrors, as many others are."""
    try:
        yield
    except RuntimeError as error:
        raise LineLost(str(error)) from error


class Line:
    """Messages of one tag arrive in the order they were sent.

    A group for each direction: gloo has a thread per group, and what comes need not wait for what goes.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        end: Literal["worker", "server"],
        timeout_seconds: float,
        connect_seconds: float | None = None,
    ) -> None:
        """`connect_seconds`: how long to wait for the other end, if not as long as for its messages."""
        self._peer = 0 if end == "server" else 1

        def group(direction: str) -> Any:
            # A client of its own: one that waits for a worker that died meanwhile would hold up all other threads.
            place = PrefixStore(f"line/{name}/{direction}", store.clone())  # type: ignore[attr-defined]
            made = dist.ProcessGroupGloo(
                place, 1 - self._peer, 2, timedelta(seconds=connect_seconds or timeout_seconds)
            )
            made._set_default_timeout(timedelta(seconds=timeout_seconds))
            return made

        pushes, pulls = group("push"), group("pull")
        self._going, self._coming = (pushes, pulls) if end == "worker" else (pulls, pushes)
        let_senders_finish()

    def send(self, tensor: Tensor, tag: int = HEADER_TAG) -> Any:
        """Starts; `wait` on what it returns, and keep that until the other end has it too."""
        return self._going.send([tensor], self._peer, tag)

    def receive(self, tensor: Tensor, tag: int = HEADER_TAG) -> Any:
        return self._coming.recv([tensor], self._peer, tag)


def push_tag(piece: int) -> int:
    return 1 + 2 * piece


def pull_tag(piece: int) -> int:
    return 2 + 2 * piece
