"""Copies between host memory and a device: on a GPU beside its computation, on the CPU by the core itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass
class Copied:
    """Bytes that were copied, counted where the copies are asked for."""

    fetched_bytes: int = 0
    given_bytes: int = 0
    steps: int = 0

    @property
    def per_step(self) -> float:
        return (self.fetched_bytes + self.given_bytes) / self.steps


@dataclass
class Fetched:
    """A copy on the device, under way until `ready`."""

    tensor: Tensor
    ready: torch.cuda.Event | None = None


class Copier(Protocol):
    """`fetch` starts a copy to the device and `arrive` has the computation wait for it; `give` is the way back."""

    def pace(self) -> None:
        """Called before every fetch: this process waits where it is too far ahead of the device."""
        ...

    def fetch(self, source: Tensor) -> Fetched: ...
    def arrive(self, fetched: Fetched) -> None: ...
    def give(self, gradient: Tensor, target: Tensor, *, add: bool) -> None: ...
    def given(self) -> None:
        """The computation waits for all that is being given."""
        ...

    def settle(self) -> None:
        """This process waits until the host has all that was given."""
        ...


class CoreCopier:
    """A CPU device copies with the core that computes, so that nothing overlaps."""

    def pace(self) -> None:
        """It is never ahead."""

    def fetch(self, source: Tensor) -> Fetched:
        return Fetched(source.clone())

    def arrive(self, fetched: Fetched) -> None:
        """It has."""

    def give(self, gradient: Tensor, target: Tensor, *, add: bool) -> None:
        if add:
            target.add_(gradient)
        else:
            target.copy_(gradient)

    def given(self) -> None:
        """It has been."""

    settle = given


class StreamCopier:
    """A stream for each direction. Memory that the GPU still works on cannot be given out again, and whoever asks
    further ahead of it needs more: so this process runs only a little ahead."""

    MOST_AHEAD = 2

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.incoming, self.outgoing = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.uses: deque[torch.cuda.Event] = deque()
        self.leaving: deque[torch.cuda.Event] = deque()

    def pace(self) -> None:
        _only(self.MOST_AHEAD, self.uses, torch.cuda.current_stream(self.device))

    def fetch(self, source: Tensor) -> Fetched:
        with torch.cuda.stream(self.incoming):
            copy = torch.empty(source.shape, dtype=source.dtype, device=self.device)
            copy.copy_(source, non_blocking=True)
            return Fetched(copy, self.incoming.record_event())

    def arrive(self, fetched: Fetched) -> None:
        computing = torch.cuda.current_stream(self.device)
        if fetched.ready:
            computing.wait_event(fetched.ready)
            fetched.tensor.record_stream(computing)  # its memory is not given out again before that is through with it
            fetched.ready = None

    def give(self, gradient: Tensor, target: Tensor, *, add: bool) -> None:
        self.outgoing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.outgoing):
            if add:
                gradient.add_(target.to(self.device, non_blocking=True))
            target.copy_(gradient, non_blocking=True)
        gradient.record_stream(self.outgoing)
        _only(self.MOST_AHEAD, self.leaving, self.outgoing)

    def given(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.outgoing)

    def settle(self) -> None:
        self.outgoing.synchronize()


def _only(most: int, moments: deque[torch.cuda.Event], stream: torch.cuda.Stream) -> None:
    """Wait until the stream has come to the moment `most` calls ago."""
    moments.append(stream.record_event())
    if len(moments) > most:
        moments.popleft().synchronize()


def make_copier(device: torch.device) -> Copier:
    return StreamCopier(device) if device.type == "cuda" else CoreCopier()
