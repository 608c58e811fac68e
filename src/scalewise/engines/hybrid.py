"""Model parallelism inside groups of devices, data parallelism between them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.engine import Engine, Job
from scalewise.engines.groups import Groups, groups_of
from scalewise.engines.line import Line
from scalewise.engines.pipelined import PipelineEngine
from scalewise.engines.tensor import build_groups
from scalewise.step.flat import views_of
from scalewise.step.left_out import is_left_out
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.pipeline import Pipeline


def build(strategy: Hybrid, job: Job) -> Engine:
    strategy.check_devices(job.place.world)
    if strategy.stages is None:
        return build_groups(strategy.as_tensor, job, strategy.inside)
    return PipelinesEngine(strategy.as_pipeline, job, strategy.inside)


class PipelinesEngine(PipelineEngine):
    """A pipeline for every share of the batch; the gradients of a stage are added up over all of them."""

    def __init__(self, strategy: Pipeline, job: Job, parts: int) -> None:
        place = job.place
        groups: Groups = groups_of(place.world, parts, place.rank, place.timeout_seconds)
        number = place.rank // parts
        ranks = tuple(range(number * parts, (number + 1) * parts))
        super().__init__(strategy, job, Line(ranks, groups.model, number, place.world // parts))
        self.same_stage = groups.data
        by_kind: dict[torch.dtype, list[nn.Parameter]] = {}
        for stage in self.stages.values():
            for parameter in stage.parameters():
                if parameter.requires_grad:
                    by_kind.setdefault(parameter.dtype, []).append(parameter)
        self.learning = list(by_kind.values())

    def _reduce(self) -> None:
        if self.same_stage is None:
            return
        for parameters in self.learning:
            flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
            dist.all_reduce(flat, group=self.same_stage)
            for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
                if not is_left_out(parameter):  # which has no gradient on one device either
                    parameter.grad = view
        self.job.clock.lap("reduce")


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
