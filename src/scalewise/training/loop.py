"""The loop that every strategy runs in: epochs, checkpoints, timing, stopping."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.central_storage import CentralStorageEngine
from scalewise.engines.engine import Engine, Job, Place
from scalewise.engines.parameter_server import ServedEngine
from scalewise.engines.registry import ENGINES
from scalewise.engines.stages import HoldsStages
from scalewise.errors import RunFailed
from scalewise.plan import Footprint
from scalewise.prediction.held import LayerMemory, Run
from scalewise.prediction.holdings import cuts_by, samples_at_a_time
from scalewise.step.clock import Times, make_clock
from scalewise.step.memory import PeakMemory
from scalewise.step.precision import set_precision
from scalewise.step.room import Room
from scalewise.step.settings import MOST_PENDING_STEPS, steps_per_epoch
from scalewise.step.shards import epoch_order
from scalewise.step.streams import Stream, states_of_all
from scalewise.tracing import sockets
from scalewise.training.checkpoint import Progress, load_checkpoint, progress_of, refuse_if_through, save_checkpoint
from scalewise.training.evaluate import accuracy_of
from scalewise.training.interrupt import Interrupt
from scalewise.training.outcome import Outcome, Report
from scalewise.training.pace import SECONDS_BETWEEN_REPORTS, at_intervals
from scalewise.training.request import Request
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.layer_memory import layers_of


def train_on(place: Place, request: Request, report: Callable[[Report], None], *, evaluate: bool = True) -> Outcome:
    """Train on this rank, from the first step or the checkpoint's, to the last."""
    with Room(place.device, request.strategy.name) as room, PeakMemory(place.device) as peak:
        return _train_in(room, peak, place, request, report, evaluate)


def _train_in(
    room: Room, peak: PeakMemory, place: Place, request: Request, report: Callable[[Report], None], evaluate: bool
) -> Outcome:
    settings = request.settings
    settings.check()
    workload = request.resolved()
    data = workload.data(request.data)
    settings.check_fits(len(data), data.source)
    set_precision(settings.precision, place.device)
    torch.manual_seed(settings.seed)
    total = settings.total_steps(len(data))
    times = Times()
    job = Job(workload, data, settings, place, make_clock(place.device, times))
    peak.watch(job.clock, steps=total, anyway=room.limit_bytes is not None)
    with room.building(peak.look):
        engine = ENGINES[request.strategy.name](request.strategy, job)
    with Interrupt() as interrupt:
        run = _Run(job, engine, total, report, interrupt, peak)
        times.warm_up = run.warm_up
        outcome = run.outcome
        run.go()
        engine.close()
    outcome.step_seconds, outcome.all_seconds = times.step_seconds, times.all_seconds
    outcome.epoch_seconds = run.epoch_seconds(times)
    outcome.phases = times.phases
    outcome.spans = times.spans(place.rank)
    outcome.peak_memory_bytes = peak.read()
    got_on = at_intervals(lambda: report(Report(run.done, total, run.epoch)))
    if place.rank == 0:
        outcome.footprint = footprint_of(workload, data)
        got_on()
        if isinstance(engine, HoldsStages):
            outcome.footprint = engine.as_run(outcome.footprint)
        if evaluate:
            outcome.layers = layers_to_plan(job, request, outcome.footprint)
            got_on()
    if evaluate and not outcome.interrupted:
        seen = min(len(data), run.done * settings.batch)
        outcome.accuracy = accuracy_of(workload, engine.predictions, seen, settings.batch, got_on)
    return outcome


def layers_to_plan(job: Job, request: Request, footprint: Footprint) -> tuple[LayerMemory, ...]:
    """What layers keep of the samples that this strategy gives a device at a time."""
    planned = Run(job.place.world, job.settings.batch, footprint, accumulate=job.settings.accumulate)
    samples, cuts = samples_at_a_time(request.strategy, planned), cuts_by(request.strategy, planned)
    return layers_of(job.workload, job.data, samples, job.place.device, job.settings.precision, cuts=cuts)


class _Run:
    """The state of the loop between steps."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        total: int,
        report: Callable[[Report], None],
        interrupt: Interrupt,
        peak: PeakMemory,
    ) -> None:
        self.job, self.engine, self.total = job, engine, total
        self.report, self.interrupt, self.peak = report, interrupt, peak
        self.done = self.first = self.looked_at = self.epoch = 0
        self.looked = perf_counter()
        self.epochs: list[tuple[int, int, float]] = []
        self.outcome = Outcome(
            source=job.data.source,
            samples=len(job.data),
            parameters=engine.parameter_count,
            execution=engine.execution,
            load=engine.feed.kind if engine.feed else "",
            why_streamed=engine.feed.why if engine.feed else "",
            steps=0,
        )
        if isinstance(engine, CentralStorageEngine):
            self.outcome.copied = engine.copied
        if isinstance(engine, ServedEngine):
            self.outcome.traffic.servers = engine.client.addresses
            self.outcome.traffic.except_port = engine.client.store_port
        self.stream = Stream(job.settings.seed, engine.stream, job.place.world)
        self.stream.begin()
        if job.settings.resume and job.settings.checkpoint:
            engine.restore(self._load)
            refuse_if_through(job.settings, self.done, total)
        self.warm_up = min(5, (total - self.done) // 4)

    def go(self) -> None:
        per_epoch = steps_per_epoch(len(self.job.data), self.job.settings.batch)
        self.first = self.done
        while self.done < self.total and not self.interrupt.requested:
            self.epoch, begun = divmod(self.done, per_epoch)
            order = epoch_order(self.job.settings.seed, self.epoch, len(self.job.data))
            batches = list(order.split(self.job.settings.batch))[begun : begun + self.total - self.done]
            seconds = self._epoch(batches)
            if len(batches) == per_epoch and not self.interrupt.requested:
                self.epochs.append((self.done - self.first - per_epoch, self.done - self.first, seconds))
            self._save()
        self.outcome.steps, self.outcome.resumed_at = self.done - self.first, self.first
        self.outcome.interrupted = self.interrupt.requested and self.done < self.total

    def epoch_seconds(self, times: Times) -> list[float]:
        """On a GPU, which may be epochs behind when the loop is through one, the sum of the steps as it timed them."""
        if self.job.place.device.type == "cpu":
            return [seconds for _, _, seconds in self.epochs]
        return [sum(times.all_seconds[first:end]) for first, end, _ in self.epochs]

    def _epoch(self, batches: list[Tensor]) -> float:
        """Seconds in which the loop went through one epoch, without its checkpoints and the counting of bytes."""
        every = self.job.settings.checkpoint_every
        aside = 0.0
        started = reported = perf_counter()
        self.engine.start_epoch(batches)
        first, end = self._traced(batches)
        for position in range(len(batches)):
            if position == first:
                aside -= perf_counter()
                self.job.clock.close()
                self.outcome.traffic.start(dist.barrier)
                aside += perf_counter()
            self.engine.step()
            self.done += 1
            self.peak.after_step(self.done - self.first)
            if position == end:
                aside -= perf_counter()
                self.job.clock.close()
                self.outcome.traffic.stop(end - first + 1, dist.barrier)
                aside += perf_counter()
            if every and self.done % every == 0:
                aside -= perf_counter()
                self._collect()
                self._save()
                aside += perf_counter()
            if self.interrupt.requested:
                break
            now = perf_counter()
            if now - reported > SECONDS_BETWEEN_REPORTS:
                self.report(Report(self.done, self.total, self.epoch))
                reported = now
        seconds = perf_counter() - started - aside
        if self._look():
            self.job.clock.close()
            self._collect()
        return seconds

    def _look(self) -> bool:
        """Whether to wait for the device now: on one GPU only now and then, between ranks always, so that all agree."""
        return (
            self.job.place.device.type == "cpu"
            or self.job.place.world > 1
            or self.job.settings.checkpoint is not None
            or self.done == self.total
            or self.interrupt.requested
            or self.done - self.looked_at > MOST_PENDING_STEPS
            or perf_counter() - self.looked > SECONDS_BETWEEN_REPORTS
        )

    def _collect(self) -> None:
        self._check(self.engine.losses())
        self.job.clock.collect()
        self.looked, self.looked_at = perf_counter(), self.done
        self.report(Report(self.done, self.total, self.epoch, self.outcome.loss))

    def _traced(self, batches: list[Tensor]) -> tuple[int, int]:
        """The first and last step whose bytes are counted: after the warm-up, before a save, whole batches only."""
        if not dist.is_initialized() or dist.get_backend() != "gloo" or not sockets.available():
            return -1, -1
        first = max(0, self.warm_up - (self.done - self.first))
        last = len(batches) - 1 - (len(batches[-1]) < self.job.settings.batch)
        if every := self.job.settings.checkpoint_every:
            last = min(last, every - self.done % every - 1)
        return (first, last) if first <= last else (-1, -1)

    def _check(self, losses: Tensor) -> None:
        if len(losses) == 0:
            return
        bad = torch.nonzero(~torch.isfinite(losses))
        if len(bad):
            step = self.done - len(losses) + int(bad[0]) + 1
            raise RunFailed(
                f"the loss became {float(losses[bad[0]])} at step {step}; a lower --learning-rate than "
                f"{self.job.learning_rate:g} may help"
            )
        self.outcome.losses += losses.tolist()
        self.outcome.loss = self.outcome.losses[-1]

    def _save(self) -> None:
        path = self.job.settings.checkpoint
        if path is None or isinstance(self.engine, ServedEngine):  # servers write theirs
            return
        whole = self.engine.whole()
        random = states_of_all(self.job.place.rank, self.job.place.world)
        if whole and whole.optimizer:
            save_checkpoint(path, whole.model, whole.optimizer, self._progress(), random)

    def _load(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        path = self.job.settings.checkpoint
        assert path is not None
        self.done = load_checkpoint(path, model, optimizer, self._progress(), self.stream).steps_done

    def _progress(self) -> Progress:
        return progress_of(self.job.workload, len(self.job.data), self.job.settings, self.done)
