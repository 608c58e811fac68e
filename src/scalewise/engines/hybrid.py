"""Engine of the hybrid strategy."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.base import Engine, Job
from scalewise.engines.communication import Groups, StageRanks, groups_of
from scalewise.engines.pipeline import PipelineEngine
from scalewise.engines.tensor import build_for_groups
from scalewise.models.parameters import is_left_out, views_of
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.pipeline import Pipeline


def build(strategy: Hybrid, job: Job) -> Engine:
    strategy.check_devices(job.place.world)
    if strategy.stages is None:
        return build_for_groups(strategy.as_tensor, job, strategy.inside)
    return ParallelPipelinesEngine(strategy.as_pipeline, job, strategy.inside)


class ParallelPipelinesEngine(PipelineEngine):
    """Engine of several pipelines that share every batch; they all-reduce the gradients of each stage."""

    def __init__(self, strategy: Pipeline, job: Job, parts: int) -> None:
        place = job.place
        groups: Groups = groups_of(place.world, parts, place.rank, place.timeout_seconds)
        number = place.rank // parts
        ranks = tuple(range(number * parts, (number + 1) * parts))
        super().__init__(strategy, job, StageRanks(ranks, groups.model, number, place.world // parts))
        self.same_stage = groups.data
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for stage in self.stages.values():
            for parameter in stage.parameters():
                if parameter.requires_grad:
                    by_dtype.setdefault(parameter.dtype, []).append(parameter)
        self.trained_by_dtype = list(by_dtype.values())

    def _reduce(self) -> None:
        if self.same_stage is None:
            return
        for parameters in self.trained_by_dtype:
            flat = torch.cat([_gradient_or_zeros(parameter).reshape(-1) for parameter in parameters])
            dist.all_reduce(flat, group=self.same_stage)
            for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
                if not is_left_out(parameter):  # single-device training gives it no gradient either
                    parameter.grad = view
        self.job.clock.lap("reduce")


def _gradient_or_zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
