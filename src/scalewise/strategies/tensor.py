"""Tensor: every device has a part of each layer and computes on the same data; their results are added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from scalewise.collectives.collective import Collective
from scalewise.plan import Footprint, Matrix, Plan, PlanBuilder
from scalewise.strategies.cut_step import backward_pass, cut_calls, forward_pass, part_bytes
from scalewise.strategies.cuts import Cut, declared_cuts, named_cuts
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class Tensor:
    """The survey's second reading of model parallelism: the same data to every part, combined by all-reduce.

    Of two layers that follow each other the first is cut by columns and the second by rows, so that what lies between
    them stays in parts; of attention every device has some heads. Other layers are computed on every device alike.
    """

    name: ClassVar[str] = "tensor"
    summary: ClassVar[str] = "a part of every layer on each device, the same data to all, results all-reduced (DTensor)"
    exact: ClassVar[bool] = True
    one_model: ClassVar[bool] = True

    columns: str = ""
    """Layers of your own model to cut by columns, '*.query+*.key+*.value+*.fc1'; empty: as the model says itself."""
    rows: str = ""
    """Layers to cut by rows, '*.output+*.fc2'."""
    head_width: int = 1
    """Columns that stay together in named layers: the width of an attention head."""

    def cuts(self, matrices: Sequence[Matrix], parts: int) -> dict[str, Cut]:
        if self.columns or self.rows:
            return named_cuts(matrices, parts, self.columns, self.rows, self.head_width)
        return declared_cuts(matrices, parts)

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Every rank is alike.

        rank 0  forward 0 |       | forward 1 |       | loss | backward 1 |       | backward 0 | update
        links             | sum 0 |           | sum 1 |                   | sum 1 |
        """
        builder = PlanBuilder()
        cuts = self.cuts(footprint.matrices, devices)
        done: tuple[int, ...] = builder.compute("load", 0, batch, count=devices)
        for phase, passed in (
            ("forward", forward_pass(footprint.matrices, cuts)),
            ("backward", backward_pass(footprint.matrices, cuts)),
        ):
            before = 0.0
            for each in (*passed.sums, None):
                at = each.at if each else passed.share
                part = (at - before) / passed.share
                calls = cut_calls(len(cuts), part, each)
                done = builder.compute(phase, 0, batch, done, at - before, devices, calls=calls, called_share=part)
                size = each.bytes * batch if each else 0
                done = builder.collective("reduce", Collective("all_reduce", backend, devices, size), done)
                before = at
            if phase == "forward":
                done = builder.compute("loss", 0, batch, done, count=devices)
        own = sum(part_bytes(footprint, cuts, 0)) / sum(footprint.parameter_bytes)
        builder.compute("update", 0, batch, done, own, devices)
        return builder.plan()
