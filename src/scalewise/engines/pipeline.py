"""Micro-batches on torch.distributed.pipelining, which takes seconds to load: only those who run it wait for that."""

from __future__ import annotations

from scalewise.engines.engine import Engine, Job
from scalewise.engines.line import Line
from scalewise.strategies.pipeline import Pipeline


def build(strategy: Pipeline, job: Job) -> Engine:
    from scalewise.engines.pipelined import PipelineEngine

    return PipelineEngine(strategy, job, Line(tuple(range(job.place.world))))
