"""Memory that a rank needs while it trains: parameters, gradients, optimizer state, activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.hardware.collectives import Backend
from scalewise.strategies.plan import Footprint

LayerMemories = tuple["LayerMemory", ...]
BytesByLayer = tuple[tuple[int, int], ...]
"""(position of a layer, bytes allocated by that layer) pairs."""


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer at a given number of samples. Layers are in the order of their calls."""

    module: str
    """Path of the layer's module in the model; empty for the loss."""
    parameters: tuple[int, ...]
    """Bytes of each trained parameter."""
    kept_bytes: int
    """Activation bytes that forward of this layer keeps for backward."""
    forward_bytes: int
    """Peak bytes during forward of this layer, beyond the activations kept by it and by the layers before it."""
    backward_bytes: int
    """Peak bytes during backward of this layer, beyond those activations and the gradients of parameters."""
    frozen_bytes: int = 0
    """Bytes of buffers and frozen parameters."""
    forward_by_layer: BytesByLayer = ()
    """Bytes in `forward_bytes` that other layers allocated."""
    backward_by_layer: BytesByLayer = ()
    """Bytes in `backward_bytes` that other layers allocated: incoming gradients, and activations not yet freed."""
    workspace_bytes: tuple[int, int] = (0, 0)
    """Workspace of the layer's library (oneDNN, cuDNN), beyond `forward_bytes` and beyond `backward_bytes`."""
    passed_bytes: int = 0
    """Output bytes that no layer keeps for backward; they are freed once the next layer has read them."""
    output_by_layer: BytesByLayer = ()
    """Bytes of the output that leaves a stage ending with this layer, by the layers that allocated them."""
    rows: tuple[int, ...] = ()
    """First dimension of each trained parameter; empty: not known."""
    frozen: tuple[tuple[int, int], ...] = ()
    """(bytes, first dimension) of each frozen parameter."""
    freed_output_bytes: int = 0
    """Output bytes, kept by other layers, that are already freed at this layer's backward peak."""
    libraries: tuple[tuple[str, int], ...] = ()
    """(purpose, bytes) that libraries keep after their first call. Layers share the bytes of one purpose."""


@dataclass(frozen=True)
class StagePass:
    """Forward or backward of one micro-batch through one stage."""

    layers: range
    """Positions of the stage's layers among the layers of the rank."""
    phase: Literal["forward", "backward"]
    beside_bytes: int
    """Bytes that other micro-batches and other stages of the rank keep during the pass."""
    gradient_bytes: int
    """Bytes of gradients that are complete before the pass begins."""
    adds: bool = False
    """Gradients of these layers are already part of `gradient_bytes`; new ones are added to them."""


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank. The defaults describe a single device."""

    layers: LayerMemories
    input_bytes: int = 0
    """Bytes of the samples and targets of a batch, plus those of the whole dataset if it is on the device."""
    updates: bool = True
    """The rank runs the optimizer and holds its state."""
    updated_bytes: int | None = None
    """Bytes of parameters with optimizer state; None: all trained parameters."""
    gradients: Literal["anew", "stay", "leave"] = "anew"
    """anew: allocated in backward and freed after the update. stay: accumulated in buffers that exist for the whole
    run. leave: sent to another process, and freed, as soon as they are complete."""
    buffer_bytes: int = 0
    """Bytes of message buffers."""
    fetched_bytes: tuple[int, ...] | None = None
    """Largest number of parameter bytes on the device during each layer's forward; None: always all parameters."""
    fetched_again_bytes: tuple[int, ...] = ()
    """Largest number of parameter bytes on the device during each layer's backward."""
    flat_bytes: int = 0
    """Bytes of a second copy of all gradients, which exists between backward and update."""
    ahead_bytes: int = 0
    """Bytes of the next batch, which is loaded before the current one is freed."""
    returned_bytes: int = 0
    """Bytes of gradients received from another device, which exist during the whole backward."""
    passes: tuple[StagePass, ...] = ()
    """Passes of micro-batches through stages; empty: one forward and one backward through all layers."""


@dataclass(frozen=True)
class TrainingRun:
    """Properties of a run, other than its strategy, that determine its memory."""

    devices: int
    batch: int
    """Global batch."""
    footprint: Footprint
    on_gpu: bool = False
    through_host: bool = False
    """Messages between GPUs go through host memory."""
    accumulate: int = 1
    """Number of parts of a batch whose gradients are accumulated before the update."""
    resident_bytes: int = 0
    """Bytes of the whole dataset if it is on the device, otherwise 0."""

    @property
    def backend(self) -> Backend:
        return "nccl" if self.on_gpu and not self.through_host else "gloo"

    def inputs(self, samples: int) -> int:
        """Bytes of `samples` samples with their targets, plus those of the whole dataset if it is on the device."""
        return samples * (self.footprint.input_bytes + self.footprint.target_bytes) + self.resident_bytes

    @property
    def share(self) -> int:
        """Largest share of a batch that is divided among all devices."""
        return -(-self.batch // self.devices)

    @property
    def part_of_share(self) -> int:
        """Samples of one accumulated part of `share`."""
        return -(-self.share // self.accumulate)

    @property
    def part_of_batch(self) -> int:
        """Samples of one accumulated part of the whole batch."""
        return -(-self.batch // self.accumulate)


def weights_of(layers: LayerMemories) -> int:
    """Bytes of the trained parameters of these layers."""
    return sum(sum(layer.parameters) for layer in layers)
