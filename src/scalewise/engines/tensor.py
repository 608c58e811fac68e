"""Engine of tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from scalewise.engines.base import Engine, Job
from scalewise.engines.communication import groups_of
from scalewise.engines.mirrored import data_parallel
from scalewise.engines.model_parts import PartitionedEngine
from scalewise.engines.tensor_split import (
    layers_with_own_random_numbers,
    record_whole_model,
    refuse_different_model,
    refuse_shared_weights,
    split_layers,
    splits_of,
)
from scalewise.models.footprint import is_declared_by_user, refuse_misnamed, splittable_layers_of
from scalewise.runtime.feed import Feed, kept_bytes, make_feed
from scalewise.runtime.optimizers import refuse_unless_elementwise
from scalewise.strategies.tensor import Tensor as TensorStrategy
from scalewise.strategies.tensor_splitting import LayerSplit


def build(strategy: TensorStrategy, job: Job) -> Engine:
    return build_for_groups(strategy, job, job.place.world)


def build_for_groups(strategy: TensorStrategy, job: Job, parts: int) -> Engine:
    """Build an engine in which every `parts` consecutive ranks share a model; such groups share every batch."""
    refuse_unless_elementwise(job.optimizer, f"devices under {strategy.name}")
    model = job.workload.model()
    if not strategy.columns:
        refuse_misnamed(model)
    layer_splits = strategy.layer_splits(splittable_layers_of(model), parts)
    refuse_shared_weights(model, layer_splits)
    feed = make_feed(job.data, job.settings.load, job.place.device, kept_bytes(model, job.optimizer) // parts)
    return TensorEngine(
        job, model, feed, layer_splits, parts, checked=bool(strategy.columns) or is_declared_by_user(model)
    )


class TensorEngine(PartitionedEngine):
    """Eager training of a model with split layers, wrapped in DDP if several groups of ranks hold a copy."""

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        feed: Feed,
        layer_splits: Mapping[str, LayerSplit],
        parts: int,
        *,
        checked: bool,
    ) -> None:
        """`checked`: whether to verify that the model computes the same with these layers split."""
        self.place = place = job.place
        self.parts = parts
        group, self.part = divmod(place.rank, parts)
        self.whole_parameter_count = sum(parameter.numel() for parameter in model.parameters())
        self.splits = splits_of(model, layer_splits)
        own_random: frozenset[str] = frozenset()
        if parts > 1:
            own_random = layers_with_own_random_numbers(job.workload, job.data, layer_splits, job.clock)
        expected = record_whole_model(job.workload, model, job.data, layer_splits) if checked and parts > 1 else None
        groups = groups_of(place.world, parts, place.rank, place.timeout_seconds)
        mesh = DeviceMesh.from_group(groups.model, place.device.type)
        sums = split_layers(model, layer_splits, self.part, mesh, job.clock, own_random, place.device)
        if expected:
            with sums.disabled():
                refuse_different_model(model, job.data, layer_splits, self.part, expected)
        model.to(place.device)
        several_groups = place.world > parts
        network = data_parallel(model, {"process_group": groups.data}) if several_groups else None
        as_group = replace(job, place=replace(place, rank=group, world=place.world // parts))
        super().__init__(as_group, model, feed, network, averaged=several_groups)

    @property
    def stream(self) -> int:
        """First rank of the group: its ranks draw equal random numbers for tensors that are whole on each."""
        return self.place.rank - self.part

    def own_tensors(self) -> Mapping[str, Tensor]:
        return dict(self.model.named_parameters())

    def losses(self) -> Tensor:
        """Return the mean losses; the sum over ranks counts a group's loss once per part."""
        return super().losses() / self.parts
