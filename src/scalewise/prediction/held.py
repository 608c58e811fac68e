"""What a rank holds while it trains: which part of the model, which gradients, whose optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.plan import Footprint
from scalewise.strategies.strategy import Backend

Layers = tuple["LayerMemory", ...]
Made = tuple[tuple[int, int], ...]
"""(position among the layers, bytes that this one made)."""


@dataclass(frozen=True)
class LayerMemory:
    """A layer's bytes at so many samples at a time; layers come in the order in which they are called."""

    module: str
    """Its path within the model; empty for the loss."""
    parameters: tuple[int, ...]
    """Of each tensor that it trains."""
    kept_bytes: int
    """Made in forward, and kept for backward."""
    forward_bytes: int
    """On top of all that this layer and those before it keep, at most, while forward is in it."""
    backward_bytes: int
    """The same of backward, without the gradients of parameters."""
    frozen_bytes: int = 0
    """Buffers, and parameters that are not trained."""
    forward_of: Made = ()
    """Of `forward_bytes`, what other layers made; under its own position copies of what it puts out."""
    backward_of: Made = ()
    """The same of `backward_bytes`: gradients that came, and what others have not yet given back."""
    copied_bytes: tuple[int, int] = (0, 0)
    """Of forward's and of backward's, copies of what it takes in."""
    passed_bytes: int = 0
    """Put out and kept by none: there while somebody has it to hand on."""
    put_out: Made = ()
    """By whatever ends with this layer."""
    rows: tuple[int, ...] = ()
    """First dimensions of those tensors; empty: not known."""
    still: tuple[tuple[int, int], ...] = ()
    """Of `frozen_bytes`, the parameters: bytes and first dimension of each."""
    gone_bytes: int = 0
    """Of what it puts out, and others keep, that which is gone when its own backward needs most."""
    library_bytes: int = 0
    """That a library keeps once it has been called, for all layers that call it."""


@dataclass(frozen=True)
class Turn:
    """Forward or backward of one micro-batch through one stage."""

    layers: range
    """Of those that the rank holds."""
    phase: Literal["forward", "backward"]
    beside_bytes: int
    """That other micro-batches, and other stages of this rank, keep meanwhile."""
    gradient_bytes: int
    """Of gradients that are complete before it begins."""
    adds: bool = False
    """Those of its own layers are among them: each new one is added to what is there."""


@dataclass(frozen=True)
class Held:
    """One rank's part. What is not given is as on a single device."""

    layers: Layers
    input_bytes: int = 0
    """Samples and targets: of a batch, and all of them where they live on the device."""
    updates: bool = True
    """Has the optimizer, and its state."""
    updated_bytes: int | None = None
    """Of the weights, those that it has state for; None: all that are trained."""
    gradients: Literal["anew", "stay", "leave"] = "anew"
    """Each made anew, to go after the update; or added, when it is complete, to what stays in place; or sent away."""
    buffer_bytes: int = 0
    """For messages."""
    lent_bytes: tuple[int, ...] | None = None
    """Of the weights, at most, while forward is in each layer; None: all are here all the time."""
    lent_again_bytes: tuple[int, ...] = ()
    """The same of backward, which does not read all of them again."""
    flat_bytes: int = 0
    """All gradients once more, between backward and update."""
    ahead_bytes: int = 0
    """The next batch, while it is loaded beside the last one; told where there may be little else."""
    returned_bytes: int = 0
    """Gradients that came from another device, there all through backward."""
    turns: tuple[Turn, ...] = ()
    """Of stages, which work on several micro-batches; empty: all layers forward, then all backward."""


@dataclass(frozen=True)
class Run:
    """What is to be known of a run beside its strategy."""

    devices: int
    batch: int
    """Global."""
    footprint: Footprint
    on_gpu: bool = False
    through_host: bool = False
    """Messages between GPUs arrive in host memory."""
    accumulate: int = 1
    resident_bytes: int = 0
    """All samples, where they live on the device."""

    @property
    def backend(self) -> Backend:
        return "nccl" if self.on_gpu and not self.through_host else "gloo"

    def inputs(self, samples: int) -> int:
        """Bytes of so many samples with their targets, and of all where those live on the device too."""
        return samples * (self.footprint.input_bytes + self.footprint.target_bytes) + self.resident_bytes

    @property
    def share(self) -> int:
        """The largest of a batch shared out over all devices."""
        return -(-self.batch // self.devices)


def weights_of(layers: Layers) -> int:
    """Trained ones."""
    return sum(sum(layer.parameters) for layer in layers)
