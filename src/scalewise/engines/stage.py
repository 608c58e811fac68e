"""A stage of a model as one module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalewise.step.precision import autocast
from scalewise.step.settings import Precision
from scalewise.workloads.chain import Border, Part
from scalewise.workloads.footprint import norms_batches


class Stage(nn.Module):
    """Takes the tensors that cross the cut before it, gives those that cross the one behind it."""

    def __init__(
        self,
        parts: Sequence[Part],
        before: Border | None,
        behind: Border,
        device: torch.device,
        precision: Precision,
        recompute: bool,
    ) -> None:
        """`before` is None for the first stage."""
        super().__init__()
        self.parts = tuple(parts)
        self.modules_in_a_row = nn.ModuleList(part.module for part in parts)
        self.before, self.behind = before, behind
        self.device, self.precision, self.recompute = device, precision, recompute
        self.overwrites: bool | None = None
        """Whether it begins with what works in place; found out where that matters."""
        self.real: int | None = None
        """Rows of what it is given now that are samples, and not there to fill it up; None: all."""
        self.norms = norms_batches(self)
        self.to(device)
        self.remembering = [
            (module, name)
            for module in self.modules_in_a_row.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]

    @contextmanager
    def remembering_nothing(self) -> Iterator[None]:
        """Buffers become again what they are now: batch norm's statistics, say."""
        before = [
            (module, name, buffer) for module, name in self.remembering if (buffer := module._buffers[name]) is not None
        ]
        values = [buffer.clone() for _, _, buffer in before]
        try:
            yield
        finally:
            for (module, name, buffer), value in zip(before, values, strict=True):
                buffer.data.copy_(value)  # no new version of it: other micro-batches' backward is yet to come
                module._buffers[name] = buffer

    def held(self) -> dict[str, Tensor]:
        """Parameters and buffers, by their names in the whole model."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            state = part.module.state_dict(keep_vars=True)
            found |= {name: state[here] for here, name in part.names().items()}
        return found

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Gradients of a concatenation are views of one tensor, and gloo sends only what lies in one piece.
        tensors = tuple(contiguous_back(each) if each.requires_grad else each for each in tensors)
        filled = len(tensors[0])
        if self.norms and self.real and self.real < filled:
            # Batch norm would count the others. One sample alone it refuses: that is there twice.
            tensors = tuple(_in_turn(each, self.real, max(self.real, 2)) for each in tensors)
        with autocast(self.precision, self.device):
            value = self.before.unpack(tensors) if self.before else tensors[0]
            value = self._run_twice(value) if self.recompute and torch.is_grad_enabled() else self._run(value)
        outputs = (value,) if isinstance(value, Tensor) else tuple(value)
        if len(tensors[0]) < filled:
            outputs = tuple(_in_turn(each, len(each), filled) for each in outputs)
        # Under bf16 a stage may compute in another type than the one that is planned to cross the cut.
        return tuple(
            each.to(passed.dtype).contiguous() for each, passed in zip(outputs, self.behind.tensors, strict=True)
        )

    def _run_twice(self, value: Any) -> Any:
        """For backward once more, from what the stage was given: where that is overwritten, from copies of it."""
        run = self._run if self.overwrites is False else self._run_on_copies
        return checkpoint(
            run, value, use_reentrant=False, context_fn=lambda: (nullcontext(), self.remembering_nothing())
        )

    def _run_on_copies(self, value: Any) -> Any:
        copies = value.clone() if isinstance(value, Tensor) else tuple(each.clone() for each in value)
        given = (copies,) if isinstance(copies, Tensor) else copies
        versions = [each._version for each in given]
        result = self._run(copies)
        self.overwrites = versions != [each._version for each in given]
        return result

    def _run(self, value: Any) -> Any:
        for module in self.modules_in_a_row:
            value = module(value)
        return value


def _in_turn(tensor: Tensor, rows: int, count: int) -> Tensor:
    """The first `rows`, again and again until there are `count`: what has no weight is a number like the others."""
    return tensor[:count] if count <= rows else tensor[torch.arange(count, device=tensor.device) % rows]


class _ContiguousBack(torch.autograd.Function):
    """The same forward, and no view, for a stage may begin in place; backward in one piece of memory."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004
        return tensor.detach()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0].contiguous()


def contiguous_back(tensor: Tensor) -> Tensor:
    result: Tensor = _ContiguousBack.apply(tensor)  # type: ignore[no-untyped-call]
    return result
