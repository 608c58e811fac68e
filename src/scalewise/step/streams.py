"""Random numbers on several ranks: each has a stream of its own, and a checkpoint keeps where all of them are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

States = Mapping[str, Tensor]
"""Of a rank's generators: 'cpu' and, where there is one, 'cuda'."""


@dataclass(frozen=True)
class Stream:
    """The random numbers of one rank; ranks that must draw alike share the `home` of theirs, the first of them."""

    seed: int
    home: int = 0
    world: int = 1

    def begin(self, steps_done: int = 0) -> None:
        """That of rank 0 goes on where the making of the model left it, as on one device."""
        if self.home:
            torch.manual_seed(seed_of(self.seed, self.home, steps_done))

    def go_on(self, states: Sequence[States], steps_done: int) -> None:
        """From the states of all ranks of a run: where those were as many as now, each from its own; else the first
        from the first's, and the others begin anew, with other numbers than at their first step."""
        if len(states) != self.world and self.home:
            self.begin(steps_done)
        else:
            set_states(states[self.home])


def seed_of(*numbers: int) -> int:
    """Far apart for numbers that are close."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def states_of_all(rank: int, world: int) -> list[States]:
    """On rank 0; every rank calls it."""
    own = states()
    if world == 1:
        return [own]
    found: list[States] | None = None if rank else [own] * world
    dist.gather_object(own, found)
    return found or []


def states() -> States:
    found = {"cpu": torch.get_rng_state()}
    # A rank of the CPU on a machine with a GPU has no context there, and needs none.
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return found | {"cuda": torch.cuda.get_rng_state()} if on_gpu else found


def set_states(found: States) -> None:
    torch.set_rng_state(found["cpu"])
    if "cuda" in found and torch.cuda.is_available():  # torch keeps it for when there is a context
        torch.cuda.set_rng_state(found["cuda"])
