"""A part of every layer on each device: the same data to all, sums by DTensor; several such groups share a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from scalewise.engines.cut_layers import cut_layers, pieces_of, refuse_if_it_fails, refuse_shared
from scalewise.engines.engine import Engine, Job
from scalewise.engines.groups import groups_of
from scalewise.engines.parts import HoldsParts
from scalewise.engines.replicas import data_parallel
from scalewise.errors import UserError
from scalewise.step.feed import Feed, make_feed
from scalewise.step.optimizers import refuse_unless_elementwise
from scalewise.strategies.cuts import Cut
from scalewise.strategies.tensor import Tensor as TensorStrategy
from scalewise.workloads.matrices import matrices_of


def build(strategy: TensorStrategy, job: Job) -> Engine:
    return build_groups(strategy, job, job.place.world)


def build_groups(strategy: TensorStrategy, job: Job, parts: int) -> Engine:
    """`parts` ranks in a row share a model; where there are more, such groups share every batch."""
    if job.settings.execution == "graph":
        raise UserError("--execution graph is not possible: steps between ranks cannot be captured; use eager or auto")
    refuse_unless_elementwise(job.optimizer, f"devices under {strategy.name}")
    model = job.workload.model()
    cuts = strategy.cuts(matrices_of(model), parts)
    if strategy.columns:
        refuse_if_it_fails(job.workload, cuts, job.clock)
    refuse_shared(model, cuts)
    _refuse_uneven_dropout(model, cuts)
    feed = make_feed(job.data, job.settings.load, job.place.device)
    return TensorEngine(job, model, feed, cuts, parts)


class TensorEngine(HoldsParts):
    """The plain loop on a model with cut layers, inside DDP where several groups have such a model."""

    def __init__(self, job: Job, model: nn.Module, feed: Feed, cuts: Mapping[str, Cut], parts: int) -> None:
        self.place = place = job.place
        self.parts = parts
        group, self.part = divmod(place.rank, parts)
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        self.pieces = pieces_of(model, cuts)
        groups = groups_of(place.world, parts, place.rank, place.timeout_seconds)
        mesh = DeviceMesh.from_group(groups.model, place.device.type)
        cut_layers(model, cuts, self.part, mesh, job.clock)
        model.to(place.device)
        several = place.world > parts
        network = data_parallel(model, {"process_group": groups.data}) if several else None
        as_group = replace(job, place=replace(place, rank=group, world=place.world // parts))
        super().__init__(as_group, model, feed, network, averaged=several)

    def held(self) -> Mapping[str, Tensor]:
        return dict(self.model.named_parameters())

    def losses(self) -> Tensor:
        """All parts of a group know the same."""
        return super().losses() / self.parts


def _refuse_uneven_dropout(model: nn.Module, cuts: Mapping[str, Cut]) -> None:
    """Parts of different sizes would draw differently many random numbers, and layers that all hold drift apart."""
    uneven = [name for name, cut in cuts.items() if len(set(cut.sizes)) > 1]
    drops = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p > 0]
    if uneven and drops:
        sizes = "+".join(map(str, cuts[uneven[0]].sizes))
        raise UserError(
            f"tensor would cut '{uneven[0]}' into unequal parts ({sizes}), impossible with dropout ('{drops[0]}'); "
            "use a number of devices that divides its columns or heads"
        )
