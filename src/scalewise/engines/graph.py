"""The whole training step as one CUDA graph: a step costs one launch instead of a hundred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scalewise.engines.engine import Job
from scalewise.step.clock import Clock, EventClock
from scalewise.step.feed import Feed, Resident
from scalewise.step.optimizers import CAPTURABLE, make_optimizer
from scalewise.step.precision import autocast

EAGER_STEPS = 3
"""Steps of a batch size that run eagerly first: libraries choose their algorithms, optimizers make their state."""


def can_capture(job: Job, feed: Feed) -> str | None:
    """Why this job cannot be captured, or None."""
    if job.place.device.type != "cuda":
        return f"CUDA graphs need a CUDA device, this run is on {job.place.device.type}"
    if not isinstance(feed, Resident):
        return f"the data is loaded by '{feed.kind}', a graph needs it resident (--load device)"
    if job.settings.accumulate > 1:
        return "gradients are accumulated over several parts"
    if job.optimizer not in CAPTURABLE | {"sgd", "momentum"}:
        return f"the optimizer '{job.optimizer}' cannot be captured"
    return None


class GraphEngine:
    """Batch numbers, sample gathers, losses and the update are all inside the graph; a step is one replay.

        eager  eager  eager  capture | replay  replay  replay ...      (each a real training step; capturing is not)

    Every 16th step replays a twin of the graph, in the same memory, with timing events between its phases.
    """

    execution = "graph"

    def __init__(self, job: Job, model: nn.Module, feed: Resident) -> None:
        self.job = job
        self.model = model
        self.feed = feed
        device = job.place.device
        self.optimizer = make_optimizer(job.optimizer, model.parameters(), job.learning_rate, captured=True)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # the default stream cannot be captured
        samples, batch = len(feed.inputs), job.settings.batch
        self.order = torch.zeros(samples + batch, dtype=torch.int64, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.steps_done = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss_buffer = torch.zeros(samples, device=device)
        self.offsets = {size: torch.arange(size, device=device) for size in {batch, samples % batch} - {0}}
        self.sizes: list[int] = []
        self.position = 0
        self.runs: Counter[int] = Counter()
        self.graphs: dict[int, _Captured] = {}

    def start_epoch(self, batches: list[Tensor]) -> None:
        self.sizes = [len(rows) for rows in batches]
        self.position = 0
        if batches:
            rows = torch.cat(batches)
            self.order[: len(rows)].copy_(rows)
        self.cursor.zero_()
        self.steps_done.zero_()

    def step(self) -> None:
        size = self.sizes[self.position]
        self.position += 1
        clock = self.job.clock
        clock.start()
        captured = self.graphs.get(size)
        if captured is None and self.runs[size] >= EAGER_STEPS:
            captured = self.graphs[size] = self._capture(size)
        if captured is not None:
            captured.replay(clock)
        else:
            self.runs[size] += 1
            self._work(size, clock.lap)

    def losses(self) -> Tensor:
        torch.cuda.synchronize()
        return self.loss_buffer[: self.position].cpu()

    def _work(self, size: int, mark: Callable[[str], None]) -> None:
        rows = self.order.index_select(0, self.cursor + self.offsets[size])
        inputs = self.feed.inputs.index_select(0, rows)
        targets = self.feed.targets.index_select(0, rows)
        mark("load")
        with autocast(self.job.settings.precision, self.job.place.device):
            outputs = self.model(inputs)
            mark("forward")
            loss = self.job.workload.loss(outputs, targets)
        mark("loss")
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        mark("backward")
        self.optimizer.step()
        self.loss_buffer.index_copy_(0, self.steps_done, loss.detach().float().reshape(1))
        self.cursor.add_(size)
        self.steps_done.add_(1)
        mark("update")

    def _capture(self, size: int) -> _Captured:
        plain = torch.cuda.CUDAGraph()
        with torch.cuda.graph(plain, stream=torch.cuda.current_stream()):
            self._work(size, lambda _: None)
        timed = torch.cuda.CUDAGraph()
        events: list[tuple[str, torch.cuda.Event]] = []

        def mark(phase: str) -> None:
            event = torch.cuda.Event(enable_timing=True, external=True)
            event.record()
            events.append((phase, event))

        with torch.cuda.graph(timed, pool=plain.pool(), stream=torch.cuda.current_stream()):
            mark("")
            self._work(size, mark)
        return _Captured(plain, timed, events)


class _Captured:
    """A step of one batch size, and its twin that times the phases."""

    def __init__(
        self, plain: torch.cuda.CUDAGraph, timed: torch.cuda.CUDAGraph, events: list[tuple[str, torch.cuda.Event]]
    ) -> None:
        self.plain = plain
        self.timed = timed
        self.events = events

    def replay(self, clock: Clock) -> None:
        if isinstance(clock, EventClock) and clock.wants(self.events):
            self.timed.replay()
        else:
            self.plain.replay()
