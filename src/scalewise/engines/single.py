"""Engine of one device: a loop of eager or compiled steps, or the whole step captured in one CUDA graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import MODES_WITH_GRAPHS, MOST_PENDING_STEPS, steps_per_epoch
from scalewise.engines.base import EagerEngine, Engine, Job, WholeModelEngine
from scalewise.runtime.clock import Clock, EventClock
from scalewise.runtime.execution import LossComputation, place_model
from scalewise.runtime.feed import Feed, Resident, kept_bytes, make_feed
from scalewise.runtime.optimizers import CAPTURABLE, make_optimizer
from scalewise.runtime.torch_errors import is_out_of_memory, short_message
from scalewise.strategies.base import Strategy

EAGER_STEPS = 3
"""Eager steps per batch size before capture, in which libraries choose algorithms and optimizers create state."""


def can_capture(job: Job, feed: Feed) -> str | None:
    """Return why this job cannot be captured in a CUDA graph, or None if it can."""
    if job.place.device.type != "cuda":
        return f"CUDA graphs need a CUDA device, but this run is on {job.place.device.type}"
    if not isinstance(feed, Resident):
        return f"the data is loaded by '{feed.kind}', but a CUDA graph needs it on the device (--load device)"
    if job.settings.accumulate > 1:
        return "gradients are accumulated over several micro-batches"
    if job.optimizer not in CAPTURABLE | {"sgd", "momentum"}:
        return f"the optimizer '{job.optimizer}' cannot be captured in a CUDA graph"
    return None


class GraphEngine(WholeModelEngine):
    """Engine that replays one CUDA graph per step, from gathering the samples to the update.

        eager  eager  eager  capture | replay  replay  replay ...      (every step trains, the capture does not)

    Every 16th step replays a second graph in the same memory, with timing events between its phases. If the capture
    fails, all steps run without a graph, unless a graph was asked for.
    """

    feed: Resident
    optimizer: torch.optim.Optimizer

    def __init__(self, job: Job, model: nn.Module, feed: Resident) -> None:
        self.job = job
        self.model = model
        self.feed = feed
        device = job.place.device
        options = job.settings.execution_options
        self.execution = "compile" if options.compiles else "graph"
        self.compute = LossComputation(model, job.workload.loss, options, device)
        self.uncompiled = options.compiles
        self.captures = True
        self.optimizer = make_optimizer(job.optimizer, model.parameters(), job.learning_rate, captured=True)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # the default stream cannot be captured
        self.counting_stream = torch.cuda.Stream(device)
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
        self.graphs: dict[int, _CapturedStep] = {}

    def start_epoch(self, batches: list[Tensor]) -> None:
        """Copy the sample indices of the epoch to the device once, without waiting for it."""
        self.sizes = [len(rows) for rows in batches]
        self.position = 0
        for size, order in self.orders.items():
            if rows := [batch for batch in batches if len(batch) == size]:
                order[: len(rows)].copy_(torch.stack(rows).pin_memory(), non_blocking=True)
        self.step_in_epoch.zero_()
        if self.uncompiled:
            self._compile()

    def step(self) -> None:
        size = self.sizes[self.position]
        self.position += 1
        self.pending += 1
        clock = self.job.clock
        clock.start()
        captured = self.graphs.get(size)
        if captured is None and self.captures and self.runs[size] >= EAGER_STEPS:
            captured = self._capture_or_fall_back(size)
        if captured is not None:
            captured.replay(clock)
        else:
            self.runs[size] += 1
            self._run_step(size, clock.lap)

    def close(self) -> None:
        """Do nothing: no connections are open."""

    def losses(self) -> Tensor:
        losses = self.loss_buffer[: self.pending].cpu()
        self.steps_pending.zero_()
        self.pending = 0
        return losses

    def _run_step(self, size: int, mark: Callable[[str], None]) -> None:
        order = self.orders[size]
        # Only the last batch of an epoch can be short, so an order with one row needs no index.
        rows = order.index_select(0, self.step_in_epoch).view(-1) if len(order) > 1 else order.view(-1)
        inputs = self.feed.inputs.index_select(0, rows)
        targets = self.feed.targets.index_select(0, rows)
        mark("load")
        loss = self.compute(inputs, targets, mark)
        self._record_loss(loss.detach())
        self.optimizer.zero_grad()
        self.job.backward(loss)
        mark("backward")
        self.job.update(self.optimizer)
        torch.cuda.current_stream().wait_stream(self.counting_stream)
        mark("update")

    def _record_loss(self, loss: Tensor) -> None:
        """Note the loss and count the step on a branch of its own: it costs backward nothing."""
        self.counting_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.counting_stream):
            self.loss_buffer.index_copy_(0, self.steps_pending, loss.float().view(1))
            self.counters.add_(1)

    def _compile(self) -> None:
        """Compile for every batch size before the first step, without CUDA graphs of torch.compile inside the step."""
        self.uncompiled = False
        self.compute.compile(captured=True)
        rows = [torch.arange(size) for size in self.orders]
        self.compute.prepare(self.model, self.feed.batches(rows))
        self.job.report.compile_seconds += self.compute.compile_seconds
        self.job.report.notes += self.compute.notes

    def _capture_or_fall_back(self, size: int) -> _CapturedStep | None:
        """Capture the step; if that fails, return None and capture no more steps."""
        started = perf_counter()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random = generator.clone_state()
        try:
            self.graphs[size] = self._capture(size)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = f"the model cannot be captured in a CUDA graph: {short_message(error)}"
            if self.job.settings.execution == "graph":
                raise _no_graph(reason) from error
            generator.graphsafe_set_state(random)  # a failed capture leaves the generator unusable
            self.captures = False
            self.execution = "compile" if self.job.settings.execution_options.compiles else "eager"
            self.job.report.notes.append(f"runs without a CUDA graph: {reason}")
        self.job.report.compile_seconds += perf_counter() - started
        return self.graphs.get(size)

    def _capture(self, size: int) -> _CapturedStep:
        plain = torch.cuda.CUDAGraph()
        with torch.cuda.graph(plain, stream=torch.cuda.current_stream()):
            self._run_step(size, lambda _: None)
        timed = torch.cuda.CUDAGraph()
        events: list[tuple[str, torch.cuda.Event]] = []

        def mark(phase: str) -> None:
            event = torch.cuda.Event(enable_timing=True, external=True)
            event.record()
            events.append((phase, event))

        with torch.cuda.graph(timed, pool=plain.pool(), stream=torch.cuda.current_stream()):
            mark("")
            self._run_step(size, mark)
        return _CapturedStep(plain, timed, events)


class _CapturedStep:
    """CUDA graph of one step for one batch size, and a second one with timing events."""

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


def _no_graph(reason: str) -> UserError:
    return UserError(f"--execution graph is not possible: {reason}; use --execution eager or auto")


def build(_: Strategy, job: Job) -> Engine:
    """Build a CUDA graph engine if the options allow it, shapes are static and the data is on the GPU."""
    device, options = job.place.device, job.settings.execution_options
    model = job.workload.model()
    feed = make_feed(job.data, job.settings.load, device, kept_bytes(model, job.optimizer))
    reason = can_capture(job, feed)
    if options.execution == "graph" and reason:
        raise _no_graph(reason)
    first_rows = torch.arange(job.settings.batch)
    job.report.notes += place_model(model, options, device, lambda: next(iter(feed.batches([first_rows])))[0])
    wanted = options.compile_mode in MODES_WITH_GRAPHS if options.compiles else options.execution != "eager"
    if wanted and reason and device.type == "cuda":
        job.report.notes.append(f"runs without a CUDA graph of the whole step: {reason}")
    if wanted and not reason and isinstance(feed, Resident):
        return GraphEngine(job, model, feed)
    return EagerEngine(job, model, feed)
