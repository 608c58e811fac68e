"""Tensor parallelism: a part of each layer on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from scalewise.hardware.collectives import Backend, Collective
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, SplittableLayer
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun
from scalewise.strategies.stage_memory import memory_of_part
from scalewise.strategies.tensor_splitting import (
    LayerSplit,
    backward_pass,
    declared_splits,
    forward_pass,
    named_cuts,
    part_bytes,
    split_layer_calls,
)


@dataclass(frozen=True)
class Tensor(Strategy):
    """Tensor parallelism: every device computes a part of each split layer for the whole batch.

    Of two consecutive layers, the first is split by columns and the second by rows, so the activations between them
    stay split and one all-reduce follows the pair. Attention is split by heads. Other layers are replicated.
    """

    name: ClassVar[str] = "tensor"
    summary: ClassVar[str] = (
        "a part of each layer on every device, the same batch on all, outputs all-reduced (DTensor)"
    )
    exact: ClassVar[bool] = True
    one_model: ClassVar[bool] = True
    cuts_layers: ClassVar[bool] = True

    columns: str = ""
    """Layers to split by columns, as '*.query+*.key+*.fc1'; empty: found automatically or declared by the model."""
    rows: str = ""
    """Layers to split by rows, as '*.output+*.fc2'."""
    head_width: int = 1
    """Number of columns of a named layer that must stay on one device (the attention head width)."""

    def layer_splits(self, matrices: Sequence[SplittableLayer], parts: int) -> dict[str, LayerSplit]:
        if self.columns or self.rows:
            return named_cuts(matrices, parts, self.columns, self.rows, self.head_width)
        return declared_splits(matrices, parts)

    def seen_at_once(self, devices: int, microbatches: int | None) -> str:  # noqa: ARG002
        return ""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Plan one step, in which all ranks do the same.

        rank 0  forward 0 |       | forward 1 |       | loss | backward 1 |       | backward 0 | update
        links             | sum 0 |           | sum 1 |                   | sum 1 |
        """
        builder = PlanBuilder()
        layer_splits = self.layer_splits(footprint.matrices, devices)
        done: tuple[int, ...] = builder.compute("load", 0, batch, count=devices)
        for phase, passed in (
            ("forward", forward_pass(footprint.matrices, layer_splits)),
            ("backward", backward_pass(footprint.matrices, layer_splits)),
        ):
            before = 0.0
            for event in (*passed.sums, None):
                at = event.at if event else passed.share
                part = (at - before) / passed.share
                calls = split_layer_calls(len(layer_splits), part, event)
                done = builder.compute(phase, 0, batch, done, at - before, devices, calls=calls, called_share=part)
                size = event.bytes * batch if event else 0
                done = builder.collective("reduce", Collective("all_reduce", backend, devices, size), done)
                before = at
            if phase == "forward":
                done = builder.compute("loss", 0, batch, done, count=devices)
        own = sum(part_bytes(footprint, layer_splits, 0)) / sum(footprint.parameter_bytes)
        builder.compute("update", 0, batch, done, own, devices)
        return builder.plan()

    def samples_at_once(self, run: TrainingRun) -> int:
        return run.part_of_batch

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        return memory_of_part(self.layer_splits(run.footprint.matrices, run.devices), rank, run, layers)
