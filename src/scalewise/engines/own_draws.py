"""Random numbers that every part of a cut layer draws for itself, between those that all parts draw alike."""

from __future__ import annotations

import torch
from torch import Tensor

from scalewise.step.streams import seed_of


class OwnDraws:
    """Random numbers of one part, from a number that all parts draw: nothing to keep in checkpoints, and the same when
    a model computes a piece of itself once more for backward, wherever it stopped doing so before."""

    def __init__(self, part: int, device: torch.device) -> None:
        self.part = part
        self.on_gpu = device.type == "cuda"
        self.alike: tuple[Tensor, Tensor | None] | None = None
        """Where generators are that all parts share, while each draws its own."""

    def begin(self) -> None:
        seed = seed_of(int(torch.randint(2**62, ())), self.part)
        self.alike = torch.get_rng_state(), torch.cuda.get_rng_state() if self.on_gpu else None
        torch.default_generator.manual_seed(seed)
        if self.on_gpu:
            torch.cuda.manual_seed(seed)

    def end(self) -> None:
        if self.alike is None:
            return
        of_host, of_gpu = self.alike
        self.alike = None
        torch.set_rng_state(of_host)
        if of_gpu is not None:
            torch.cuda.set_rng_state(of_gpu)
