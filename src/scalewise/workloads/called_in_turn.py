"""Whether a model calls its stages one after the other, each with just what the one before gave: then they are it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from scalewise.workloads.chain import Part


class _Turns:
    """Follows a call of the model by the tensors themselves, so that none need have numbers."""

    def __init__(self, parts: Sequence[Part], inputs: Tensor) -> None:
        self.stages = [part.module for part in parts]
        self.begun = self.done = 0
        self.handed = _Handed(inputs)
        self.alike = True

    def end(self, outputs: Any) -> bool:
        """Whether what the model gave is what its last stage did."""
        return self.alike and self.done == len(self.stages) and self.handed.is_given(outputs)

    def enter(self, stage: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        due = self.begun == self.done < len(self.stages) and self.stages[self.done] is stage
        self.alike &= due and len(given) == 1 and not named and self.handed.is_given(given[0])
        self.begun += 1

    def leave(self, outputs: Any) -> None:
        self.handed = _Handed(outputs)
        self.done += 1


class _Handed:
    """What a stage gave: the tensors, which nobody has written to since."""

    def __init__(self, value: Any) -> None:
        self.leaves, self.structure = tree_flatten(value)
        self.versions = _versions(self.leaves)

    def is_given(self, value: Any) -> bool:
        leaves, structure = tree_flatten(value)
        same = structure == self.structure and all(a is b for a, b in zip(leaves, self.leaves, strict=True))
        return same and _versions(leaves) == self.versions


def followed(model: nn.Module, parts: Sequence[Part], inputs: Tensor) -> tuple[Any, bool]:
    """What the model gives, and whether it does no more than to call its stages in turn."""
    turns = _Turns(parts, inputs)
    hooks = []
    for stage in set(turns.stages):
        hooks.append(stage.register_forward_pre_hook(turns.enter, with_kwargs=True, prepend=True))
        hooks.append(stage.register_forward_hook(lambda _, __, outputs: turns.leave(outputs)))
    try:
        outputs = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, turns.end(outputs)


def _versions(leaves: Sequence[Any]) -> list[int]:
    return [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]
