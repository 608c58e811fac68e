"""One device: the plain loop, or the whole step as a CUDA graph."""

from __future__ import annotations

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Engine, Job
from scalewise.engines.graph import GraphEngine, can_capture
from scalewise.errors import UserError
from scalewise.step.feed import Resident, kept_bytes, make_feed
from scalewise.strategies.single import Single


def build(_: Single, job: Job) -> Engine:
    """Graph where shapes are static and the data resident on a GPU, else eager."""
    model = job.workload.model()
    feed = make_feed(job.data, job.settings.load, job.place.device, kept_bytes(model, job.optimizer))
    execution = job.settings.execution
    reason = can_capture(job, feed)
    if execution == "graph" and reason:
        raise UserError(f"--execution graph is not possible: {reason}; use --execution eager or auto")
    model = model.to(job.place.device)
    if execution != "eager" and not reason and isinstance(feed, Resident):
        return GraphEngine(job, model, feed)
    return EagerEngine(job, model, feed)
