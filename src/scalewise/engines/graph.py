"""The whole training step as one CUDA graph: a step costs one launch instead of a hundred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scalewise.engines.engine import Job
from scalewise.engines.holding import HoldsWhole
from scalewise.step.clock import Clock, EventClock
from scalewise.step.feed import Feed, Resident
from scalewise.step.optimizers import CAPTURABLE, make_optimizer
from scalewise.step.precision import autocast
from scalewise.step.settings import MOST_PENDING_STEPS, steps_per_epoch

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


class GraphEngine(HoldsWhole):
    """Batch numbers, sample gathers, losses and the update are all inside the graph; a step is one replay.

        eager  eager  eager  capture | replay  replay  replay ...      (each a real training step; capturing is not)

    Every 16th step replays a twin of the graph, in the same memory, with timing events between its phases.
    """

    execution = "graph"
    feed: Resident
    optimizer: torch.optim.Optimizer

    def __init__(self, job: Job, model: nn.Module, feed: Resident) -> None:
        self.job = job
        self.model = model
        self.feed = feed
        device = job.place.device
        self.optimizer = make_optimizer(job.optimizer, model.parameters(), job.learning_rate, captured=True)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # the default stream cannot be captured
        self.beside = torch.cuda.Stream(device)
        samples, batch = len(feed.inputs), job.settings.batch
        self.orders = {
            size: torch.zeros(count, size, dtype=torch.int64, device=device)
            for size, count in {batch: samples // batch, samples % batch: 1}.items()
            if size and count
        }
        self.loss_buffer = torch.zeros(steps_per_epoch(samples, batch) + MOST_PENDING_STEPS, device=device)
        self.counters = torch.zeros(2, dtype=torch.int64, device=device)
        self.step_in_epoch, self.steps_pending = self.counters[:1], self.counters[1:]
        self.sizes: list[int] = []
        self.position = self.pending = 0
        self.runs: Counter[int] = Counter()
        self.graphs: dict[int, _Captured] = {}

    def start_epoch(self, batches: list[Tensor]) -> None:
        """Row numbers travel to the device once, without waiting for it."""
        self.sizes = [len(rows) for rows in batches]
        self.position = 0
        for size, order in self.orders.items():
            if rows := [batch for batch in batches if len(batch) == size]:
                order[: len(rows)].copy_(torch.stack(rows).pin_memory(), non_blocking=True)
        self.step_in_epoch.zero_()

    def step(self) -> None:
        size = self.sizes[self.position]
        self.position += 1
        self.pending += 1
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

    def close(self) -> None:
        """Nothing is open."""

    def losses(self) -> Tensor:
        losses = self.loss_buffer[: self.pending].cpu()
        self.steps_pending.zero_()
        self.pending = 0
        return losses

    def _work(self, size: int, mark: Callable[[str], None]) -> None:
        order = self.orders[size]
        # A short batch is the last of its epoch: its rows are the only ones of that size.
        rows = order.index_select(0, self.step_in_epoch).view(-1) if len(order) > 1 else order.view(-1)
        inputs = self.feed.inputs.index_select(0, rows)
        targets = self.feed.targets.index_select(0, rows)
        mark("load")
        with autocast(self.job.settings.precision, self.job.place.device):
            outputs = self.model(inputs)
            mark("forward")
            loss = self.job.workload.loss(outputs, targets)
        mark("loss")
        self._count_beside(loss.detach())
        self.optimizer.zero_grad()
        loss.backward()
        mark("backward")
        self.optimizer.step()
        torch.cuda.current_stream().wait_stream(self.beside)
        mark("update")

    def _count_beside(self, loss: Tensor) -> None:
        """Note the loss and count the step on a branch of its own: it costs backward nothing."""
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            self.loss_buffer.index_copy_(0, self.steps_pending, loss.float().view(1))
            self.counters.add_(1)

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
