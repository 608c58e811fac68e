"""Base class of engines whose ranks each hold a part of the model: checkpoints and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.engines.base import EagerEngine, Place, ReadCheckpoint, WholeModel
from scalewise.engines.communication import Wire
from scalewise.runtime.feed import Batch
from scalewise.runtime.optimizers import make_optimizer, placed_state


@dataclass(frozen=True)
class TensorSplit:
    """How a tensor is distributed: split along a dimension, or (without `sizes`) whole on the first part at least."""

    dimension: int = 0
    sizes: tuple[int, ...] = ()

    def of(self, whole: Tensor, part: int) -> Tensor:
        """Return the piece of a whole tensor that belongs to a part."""
        return whole.split(self.sizes, self.dimension)[part] if self.sizes else whole


class PartitionedEngine(EagerEngine, ABC):
    """Base class of engines in which every `parts` consecutive ranks together hold the model."""

    place: Place
    splits: Mapping[str, TensorSplit]
    """Name of every parameter of the whole model -> how it is split."""
    parts: int
    """Number of parts that the model is split into."""
    part: int
    """Part on this rank."""
    whole_parameter_count: int
    """Number of parameters of the whole model."""

    @property
    def parameter_count(self) -> int:
        return self.whole_parameter_count

    @abstractmethod
    def own_tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors that this rank's optimizer updates, by their names in the whole model."""

    def whole(self) -> WholeModel | None:
        """Assemble the model and optimizer state in the host memory of rank 0, one tensor at a time."""
        if self.place.rank >= self.parts:
            return None
        wire = Wire(self.place.device) if self.parts > 1 else None
        own_tensors = self.own_tensors()
        state = self.optimizer.state if self.optimizer else {}
        weights: dict[str, Tensor] = {}
        states: dict[str, dict[str, Any]] = {}
        for name, split in self.splits.items():
            piece = own_tensors.get(name)
            weights[name] = _gather(piece, split, wire, self.part)
            values: Mapping[str, Any] = state.get(piece, {}) if piece is not None else {}
            states[name] = {
                key: _gather(value, split, wire, self.part) if _is_split_alike(value, piece) else value
                for key, value in sorted(values.items())
            }
        if self.place.rank:
            return None
        model, optimizer = self._new_model_and_optimizer()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
                if states[name]:
                    optimizer.state[parameter] = states[name]
            buffers = dict(self.model.named_buffers())
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        return WholeModel(model, optimizer)

    def restore(self, read: ReadCheckpoint) -> None:
        """Load the whole checkpoint into host memory on every rank and keep this rank's part."""
        model, optimizer = self._new_model_and_optimizer()
        read(model, optimizer)
        own_tensors = self.own_tensors()
        assert self.optimizer is not None
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in own_tensors:
                    continue
                piece = own_tensors[name]
                piece.copy_(self.splits[name].of(parameter, self.part))
                if state := optimizer.state.get(parameter):
                    self.optimizer.state[piece] = {
                        key: self._state_of_part(key, value, name, parameter, piece) for key, value in state.items()
                    }
            buffers = dict(self.model.named_buffers())
            for name, buffer in model.named_buffers():
                buffers[name].copy_(buffer)

    @torch.no_grad()
    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        """Compute the outputs on all ranks; yield them on rank 0."""
        self.model.eval()
        for inputs, targets in self.feed.batches(rows):
            outputs = self.model(inputs)
            if self.place.rank == 0:
                yield outputs, targets
        self.model.train()

    def _new_model_and_optimizer(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a whole model and optimizer on the host without changing the state of random generators."""
        with torch.random.fork_rng(devices=[]):
            model = self.job.workload.model()
        return model, make_optimizer(self.job.optimizer, model.parameters(), self.job.learning_rate)

    def _state_of_part(self, key: str, value: Any, name: str, parameter: Tensor, piece: Tensor) -> Any:
        if isinstance(value, Tensor) and value.shape == parameter.shape and parameter.dim():
            value = self.splits[name].of(value, self.part).clone()
        return placed_state(key, value, piece, self.optimizer)  # type: ignore[arg-type]


def _is_split_alike(value: Any, parameter: Tensor | None) -> bool:
    return isinstance(value, Tensor) and parameter is not None and value.shape == parameter.shape and value.dim() > 0


def _gather(piece: Tensor | None, split: TensorSplit, wire: Wire | None, part: int) -> Tensor:
    """Return the whole tensor in host memory on the first part, an empty tensor on the others."""
    if not split.sizes or wire is None:
        return torch.empty(0) if piece is None else piece.detach().cpu()
    assert piece is not None
    piece = piece.detach()
    if part:
        wire.send([(piece, 0)])
        return torch.empty(0)
    gathered = [piece.cpu()]
    for source, size in enumerate(split.sizes[1:], 1):
        shape = list(piece.shape)
        shape[split.dimension] = size
        received = piece.new_empty(shape)
        wire.receive([(received, source)])
        gathered.append(received.cpu())
    return torch.cat(gathered, split.dimension)


def chunk_sizes(length: int, parts: int) -> tuple[int, ...]:
    """Return the sizes that torch.chunk gives, padded with zeros: length 5 in 4 parts gives 2, 2, 1, 0."""
    step = -(-length // parts)
    return tuple(min(step, max(0, length - part * step)) for part in range(parts))
