"""A part of every layer on each device: the same data to all, sums by DTensor; several such groups share a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from scalewise.engines.cut_layers import cut_layers, drawing_layers, pieces_of, refuse_shared
from scalewise.engines.cut_trial import expected_of, refuse_another_model
from scalewise.engines.engine import Engine, Job
from scalewise.engines.groups import groups_of
from scalewise.engines.parts import HoldsParts
from scalewise.engines.replicas import data_parallel
from scalewise.errors import UserError
from scalewise.step.feed import Feed, kept_bytes, make_feed
from scalewise.step.optimizers import refuse_unless_elementwise
from scalewise.strategies.cuts import Cut
from scalewise.strategies.tensor import Tensor as TensorStrategy
from scalewise.workloads.matrices import is_said_by_others, matrices_of, refuse_misnamed


def build(strategy: TensorStrategy, job: Job) -> Engine:
    return build_groups(strategy, job, job.place.world)


def build_groups(strategy: TensorStrategy, job: Job, parts: int) -> Engine:
    """`parts` ranks in a row share a model; where there are more, such groups share every batch."""
    if job.settings.execution == "graph":
        raise UserError("--execution graph is not possible: steps between ranks cannot be captured; use eager or auto")
    refuse_unless_elementwise(job.optimizer, f"devices under {strategy.name}")
    model = job.workload.model()
    if not strategy.columns:
        refuse_misnamed(model)
    cuts = strategy.cuts(matrices_of(model), parts)
    refuse_shared(model, cuts)
    feed = make_feed(job.data, job.settings.load, job.place.device, kept_bytes(model, job.optimizer) // parts)
    return TensorEngine(job, model, feed, cuts, parts, checked=bool(strategy.columns) or is_said_by_others(model))


class TensorEngine(HoldsParts):
    """The plain loop on a model with cut layers, inside DDP where several groups have such a model."""

    def __init__(
        self, job: Job, model: nn.Module, feed: Feed, cuts: Mapping[str, Cut], parts: int, *, checked: bool
    ) -> None:
        """`checked`: whether a model with these layers cut is the same is not known, and found out."""
        self.place = place = job.place
        self.parts = parts
        group, self.part = divmod(place.rank, parts)
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        self.pieces = pieces_of(model, cuts)
        drawing = drawing_layers(job.workload, job.data, cuts, job.clock) if parts > 1 else frozenset()
        expected = expected_of(job.workload, model, job.data, cuts) if checked and parts > 1 else None
        groups = groups_of(place.world, parts, place.rank, place.timeout_seconds)
        mesh = DeviceMesh.from_group(groups.model, place.device.type)
        sums = cut_layers(model, cuts, self.part, mesh, job.clock, drawing, place.device)
        if expected:
            with sums.untouched():
                refuse_another_model(model, job.data, cuts, self.part, expected)
        model.to(place.device)
        several = place.world > parts
        network = data_parallel(model, {"process_group": groups.data}) if several else None
        as_group = replace(job, place=replace(place, rank=group, world=place.world // parts))
        super().__init__(as_group, model, feed, network, averaged=several)

    @property
    def stream(self) -> int:
        """The parts of a model draw alike, for what is whole on each."""
        return self.place.rank - self.part

    def held(self) -> Mapping[str, Tensor]:
        return dict(self.model.named_parameters())

    def losses(self) -> Tensor:
        """All parts of a group know the same."""
        return super().losses() / self.parts
