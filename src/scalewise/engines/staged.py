"""The whole state of a model whose ranks hold stages of it each: gathered for checkpoints, and taken from them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.engine import Job, Read, Whole
from scalewise.engines.line import Line
from scalewise.engines.stage import Stage
from scalewise.step.optimizers import make_optimizer, placed_state
from scalewise.step.wire import Wire


class Staged:
    """A line of ranks, each with its stages and their optimizer."""

    job: Job
    line: Line
    stages: dict[int, Stage]
    optimizer: torch.optim.Optimizer | None
    wire: Wire | None
    in_no_stage: dict[str, Tensor]

    def whole(self) -> Whole | None:
        """The first rank is sent everything, tensor by tensor, and puts it together in host memory."""
        if self.line.part:
            return None
        tensors, scalars = self._state()
        told = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
        first, *others = self.line.ranks
        if self.job.place.rank != first:
            dist.gather_object((told, scalars), None, dst=first, group=self.line.group)
            assert self.wire is not None
            for tensor in tensors.values():
                self.wire.send([(self._sendable(tensor), first)])
            return None
        gathered: list[Any] = [None] * len(self.line.ranks)
        if others:
            dist.gather_object((told, scalars), gathered, dst=first, group=self.line.group)
        for rank, (names, their_scalars) in zip(others, gathered[1:], strict=True):
            scalars |= their_scalars
            for name, shape, dtype in names:
                assert self.wire is not None
                received = self._sendable(torch.empty(shape, dtype=dtype))
                self.wire.receive([(received, rank)])
                tensors[name] = received.cpu()
        return self._put_together(tensors, scalars)

    def restore(self, read: Read) -> None:
        """Every rank reads it all into host memory and keeps its stages."""
        model, optimizer = self._fresh()
        read(model, optimizer)
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, left in self.in_no_stage.items():
                left.copy_(state[name])
            for name, mine in self._held().items():
                if name not in state:  # a constant that an export made of the model
                    continue
                mine.copy_(state[name])
                if self.optimizer and (kept := optimizer.state.get(state[name])):
                    self.optimizer.state[mine] = {
                        key: placed_state(key, value, mine, self.optimizer) for key, value in kept.items()
                    }

    def _held(self) -> dict[str, Tensor]:
        return dict(chain.from_iterable(stage.held().items() for stage in self.stages.values()))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers, by names as in checkpoints."""
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {}
        for name, tensor in self._held().items():
            tensors[f"model/{name}"] = tensor.detach()
            state: Mapping[str, Any] = self.optimizer.state.get(tensor, {}) if self.optimizer else {}
            for key, value in state.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"optimizer/{name}/{key}"] = value
        return tensors, scalars

    def _put_together(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> Whole:
        model, optimizer = self._fresh()
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in self.in_no_stage.items():
                state[name].copy_(tensor)
            for name, tensor in state.items():
                if (entry := f"model/{name}") in tensors:
                    tensor.copy_(tensors[entry])
        for entry, value in chain(tensors.items(), scalars.items()):
            kind, _, rest = entry.partition("/")
            if kind == "optimizer":
                name, _, key = rest.rpartition("/")
                optimizer.state[state[name]][key] = value
        return Whole(model, optimizer)

    def _fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A whole model on the host; what it is initialised with changes no later random number."""
        with torch.random.fork_rng(devices=[]):
            model = self.job.workload.model()
        return model, make_optimizer(self.job.optimizer, model.parameters(), self.job.learning_rate)

    def _sendable(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.job.place.device) if dist.get_backend() == "nccl" else tensor
