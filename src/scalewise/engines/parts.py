"""What engines have in common that hold a part of the model on every rank: whole checkpoints, and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Place, Read, Whole
from scalewise.step.feed import Batch
from scalewise.step.optimizers import make_optimizer, placed_state
from scalewise.step.wire import Wire


@dataclass(frozen=True)
class Pieces:
    """How one tensor lies over the parts: cut along a dimension, or whole on the first (and perhaps on others too)."""

    dimension: int = 0
    sizes: tuple[int, ...] = ()

    def of(self, whole: Tensor, part: int) -> Tensor:
        return whole.split(self.sizes, self.dimension)[part] if self.sizes else whole


class HoldsParts(EagerEngine, ABC):
    """Ranks `0` to `parts - 1` hold one whole model between them; others, if any, hold it once more."""

    place: Place
    pieces: Mapping[str, Pieces]
    """Of every parameter of the whole model."""
    parts: int
    part: int
    counted: int
    """Parameters of the whole model."""

    @property
    def parameter_count(self) -> int:
        return self.counted

    @abstractmethod
    def held(self) -> Mapping[str, Tensor]:
        """What the optimizer updates here, by name."""

    def whole(self) -> Whole | None:
        """Rank 0 gets the others' parts, one tensor after the other, and puts them together in host memory."""
        if self.place.rank >= self.parts:
            return None
        wire = Wire(self.place.device) if self.parts > 1 else None
        held = self.held()
        state = self.optimizer.state if self.optimizer else {}
        weights: dict[str, Tensor] = {}
        states: dict[str, dict[str, Any]] = {}
        for name, pieces in self.pieces.items():
            mine = held.get(name)
            weights[name] = _joined(mine, pieces, wire, self.part)
            values: Mapping[str, Any] = state.get(mine, {}) if mine is not None else {}
            states[name] = {
                key: _joined(value, pieces, wire, self.part) if _is_cut(value, mine) else value
                for key, value in sorted(values.items())
            }
        if self.place.rank:
            return None
        model, optimizer = self._fresh()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
                if states[name]:
                    optimizer.state[parameter] = states[name]
            buffers = dict(self.model.named_buffers())
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        return Whole(model, optimizer)

    def restore(self, read: Read) -> None:
        """Every rank reads it all into host memory and keeps its part."""
        model, optimizer = self._fresh()
        read(model, optimizer)
        held = self.held()
        assert self.optimizer is not None
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in held:
                    continue
                mine = held[name]
                mine.copy_(self.pieces[name].of(parameter, self.part))
                if state := optimizer.state.get(parameter):
                    self.optimizer.state[mine] = {
                        key: self._taken(key, value, name, parameter, mine) for key, value in state.items()
                    }
            buffers = dict(self.model.named_buffers())
            for name, buffer in model.named_buffers():
                buffers[name].copy_(buffer)

    @torch.no_grad()
    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        """All compute the same; rank 0 tells."""
        self.model.eval()
        for inputs, targets in self.feed.batches(rows):
            outputs = self.model(inputs)
            if self.place.rank == 0:
                yield outputs, targets
        self.model.train()

    def _fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A whole model on the host; what it is initialised with changes no later random number."""
        with torch.random.fork_rng(devices=[]):
            model = self.job.workload.model()
        return model, make_optimizer(self.job.optimizer, model.parameters(), self.job.learning_rate)

    def _taken(self, key: str, value: Any, name: str, parameter: Tensor, mine: Tensor) -> Any:
        if isinstance(value, Tensor) and value.shape == parameter.shape and parameter.dim():
            value = self.pieces[name].of(value, self.part).clone()
        return placed_state(key, value, mine, self.optimizer)  # type: ignore[arg-type]


def _is_cut(value: Any, parameter: Tensor | None) -> bool:
    return isinstance(value, Tensor) and parameter is not None and value.shape == parameter.shape and value.dim() > 0


def _joined(mine: Tensor | None, pieces: Pieces, wire: Wire | None, part: int) -> Tensor:
    """On the first part, in host memory; elsewhere nothing that matters."""
    if not pieces.sizes or wire is None:
        return torch.empty(0) if mine is None else mine.detach().cpu()
    assert mine is not None
    mine = mine.detach()
    if part:
        wire.send([(mine, 0)])
        return torch.empty(0)
    found = [mine.cpu()]
    for source, size in enumerate(pieces.sizes[1:], 1):
        shape = list(mine.shape)
        shape[pieces.dimension] = size
        piece = mine.new_empty(shape)
        wire.receive([(piece, source)])
        found.append(piece.cpu())
    return torch.cat(found, pieces.dimension)


def chunk_sizes(length: int, parts: int) -> tuple[int, ...]:
    """As torch.chunk cuts: 5 in 4 parts are 2, 2, 1 and none."""
    step = -(-length // parts)
    return tuple(min(step, max(0, length - part * step)) for part in range(parts))
