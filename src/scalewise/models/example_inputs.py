"""Models with any inputs, described by an example batch: workloads to describe, time and advise on, not to train."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.data.dataset import load_generated
from scalewise.models.operator_rules import tensors_in
from scalewise.models.workload import Workload

CLASSES = 2
"""Generated targets, which the loss does not read."""


def example_workload(name: str, build: Callable[[], nn.Module], example: Any, optimizer: str = "adam") -> Workload:
    """Workload of a model that takes `example`: a tensor, a tuple of arguments or a dict of keyword arguments.

    Batches of other sizes have the same shapes with another first dimension. If the model returns a loss (a scalar, or
    an output named `loss`), that is used; otherwise the mean of its output.
    """
    tensors = list(tensors_in(example))
    if not tensors or tensors[0].dim() == 0:
        raise UserError(
            f"the example batch of '{name}' is {type(example).__name__} without a batch of tensors; give a tensor, a "
            "tuple of arguments or a dict of keyword arguments, whose first dimension is the batch"
        )
    batch = tensors[0].shape[0]
    if batch < 1:
        raise UserError(f"the example batch of '{name}' is empty; give at least one sample")
    shapes = _shapes_of(example)
    sample_bytes = sum(tensor.nbytes for tensor in tensors if _has_batch(tensor, batch)) // batch
    input_shape = (max(1, math.ceil(sample_bytes / 4)),)
    return Workload(
        name=name,
        model=partial(_build, build, shapes, batch),
        data=partial(load_generated, input_shape=input_shape, classes=CLASSES),
        loss=_mean,
        input_shape=input_shape,
        optimizer=optimizer,
        not_trainable=(
            f"'{name}' has an example batch but no data and loss, so it can be described and advised on, but not "
            "trained; return a scalewise.Workload to train it"
        ),
    )


def _build(build: Callable[[], nn.Module], example: Any, batch: int) -> nn.Module:
    return ExampleInputs(build(), example, batch)


def _mean(outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001
    return outputs.float().mean()


def _has_batch(tensor: Tensor, batch: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == batch


def _shapes_of(example: Any) -> Any:
    """Replace tensors by empty ones on the meta device, so that nothing is kept in memory."""
    if isinstance(example, Tensor):
        return torch.empty(example.shape, dtype=example.dtype, device="meta")
    if isinstance(example, (tuple, list)):
        return tuple(map(_shapes_of, example))
    if isinstance(example, dict):
        return {key: _shapes_of(value) for key, value in example.items()}
    return example


class ExampleInputs(nn.Module):
    """Takes one tensor, of which only the batch size and device matter, and calls the model with inputs like the
    example's: zeros, which are valid token ids."""

    def __init__(self, model: nn.Module, example: Any, batch: int) -> None:
        super().__init__()
        self.model, self.example, self.batch = model, example, batch

    def forward(self, inputs: Tensor) -> Tensor:
        arguments = self._inputs(self.example, inputs)
        if isinstance(arguments, dict):
            outputs = self.model(**arguments)
        else:
            outputs = self.model(*arguments) if isinstance(arguments, tuple) else self.model(arguments)
        return _one_value_per_sample(outputs, len(inputs))

    def _inputs(self, example: Any, inputs: Tensor) -> Any:
        if isinstance(example, Tensor):
            size = (len(inputs), *example.shape[1:]) if _has_batch(example, self.batch) else example.shape
            return torch.zeros(size, dtype=example.dtype, device=inputs.device)
        if isinstance(example, tuple):
            return tuple(self._inputs(value, inputs) for value in example)
        if isinstance(example, dict):
            return {key: self._inputs(value, inputs) for key, value in example.items()}
        return example


def _one_value_per_sample(outputs: Any, batch: int) -> Tensor:
    """The model's own loss, its only output, or the sum of all its outputs; the first dimension is the batch."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        loss = next((tensor for tensor in _floats(outputs) if tensor.dim() == 0), None)
    if loss is not None:
        return loss.expand(batch) if loss.dim() == 0 else loss
    tensors = [tensor for tensor in _floats(outputs) if len(tensor) == batch]
    if not tensors:
        raise UserError(
            f"the model returns {type(outputs).__name__} without a loss and without a tensor whose first dimension is "
            "the batch"
        )
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([tensor.flatten(1).sum(1) for tensor in tensors]).sum(0)


def _floats(outputs: Any) -> Iterator[Tensor]:
    values = outputs.values() if isinstance(outputs, dict) else [outputs]
    yield from (tensor for tensor in tensors_in(list(values)) if tensor.is_floating_point())
