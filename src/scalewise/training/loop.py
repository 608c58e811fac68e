"""Training loop of every synchronous strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.core.errors import LowerLearningRate, RunFailed
from scalewise.core.training_options import MOST_PENDING_STEPS, steps_per_epoch
from scalewise.engines.base import Engine, Job, Place
from scalewise.engines.registry import ENGINES
from scalewise.models.footprint import footprint_of
from scalewise.models.workload import Workload
from scalewise.runtime import byte_counters
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.device_memory import MemoryLimit, PeakMemory
from scalewise.runtime.execution import Stream, execution_scope, states_of_all
from scalewise.runtime.feed import Batch, epoch_order
from scalewise.runtime.graceful_stop import GracefulStop
from scalewise.runtime.layer_memory import layers_of
from scalewise.strategies.plan import Footprint
from scalewise.strategies.rank_memory import LayerMemory, TrainingRun
from scalewise.training.checkpoint import Progress, load_checkpoint, progress_of, save_checkpoint
from scalewise.training.feasibility import check_batch_norm
from scalewise.training.recovery import FIRST_CHOICE_STEPS, estimated_save_seconds, next_save
from scalewise.training.results import SECONDS_BETWEEN_REPORTS, Outcome, Report, Request, at_intervals


def accuracy_of(
    workload: Workload,
    predictions: Callable[[list[Tensor]], Iterator[Batch]],
    samples: int,
    batch: int,
    report_alive: Callable[[], None],
) -> float | None:
    """Fraction correct over the first `samples` samples; None if the workload defines no accuracy.

    Also None on ranks that receive no outputs. `report_alive` is called after each batch: the other ranks may be
    finished, and a rank that neither finishes nor reports counts as hung.
    """
    if workload.accuracy is None:
        return None
    correct, count = 0.0, 0
    for outputs, targets in predictions(list(torch.arange(samples).split(batch))):
        correct += float(workload.accuracy(outputs, targets)) * len(targets)
        count += len(targets)
        report_alive()
    return correct / count if count else None


def train_on(place: Place, request: Request, report: Callable[[Report], None], *, evaluate: bool = True) -> Outcome:
    """Train on this rank to the last step, from step 0 or from the checkpoint."""
    settings = request.settings
    settings.check()
    request.strategy.check_execution(settings.execution_options)
    with (
        execution_scope(settings.execution_options, place.device),
        MemoryLimit(place.device) as limit,
        PeakMemory(place.device) as peak,
    ):
        return _train_within(limit, peak, place, request, report, evaluate)


def _train_within(
    limit: MemoryLimit,
    peak: PeakMemory,
    place: Place,
    request: Request,
    report: Callable[[Report], None],
    evaluate: bool,
) -> Outcome:
    settings = request.settings
    workload = request.resolved()
    data = workload.data(request.data)
    settings.check_fits(len(data), data.source)
    torch.manual_seed(settings.seed)
    check_batch_norm(workload, data, settings, request.strategy, place.world)
    total = settings.total_steps(len(data))
    times = Times()
    job = Job.of(workload, data, settings, place, make_clock(place.device, times))
    peak.watch(steps=total, limited=limit.limit_bytes is not None)
    with limit.building(peak.look):
        engine = ENGINES[request.strategy.name](request.strategy, job)
    run = _Run(job, engine, total, report, peak)
    times.warm_up = run.warm_up
    outcome = run.outcome
    run.run()
    engine.close()
    outcome.execution = engine.execution
    outcome.compile_seconds, outcome.execution_notes = job.report.compile_seconds, job.report.notes
    outcome.step_seconds, outcome.all_seconds = times.step_seconds, times.all_seconds
    outcome.epoch_seconds = run.epoch_seconds(times)
    outcome.phases = times.phases
    outcome.spans = times.spans(place.rank)
    outcome.peak_memory_bytes = peak.read()
    report_alive = at_intervals(lambda: report(Report(run.done, total, run.epoch)))
    if place.rank == 0:
        outcome.footprint = engine.as_run(footprint_of(workload, data))
        report_alive()
    if evaluate and not outcome.interrupted:
        samples_trained = min(len(data), run.done * settings.batch)
        outcome.accuracy = accuracy_of(workload, engine.predictions, samples_trained, settings.batch, report_alive)
    if evaluate and outcome.footprint:
        limit.lift()
        outcome.layers = layer_memories(job, request, outcome.footprint)
        report_alive()
    return outcome


def layer_memories(job: Job, request: Request, footprint: Footprint) -> tuple[LayerMemory, ...]:
    """Memory of every layer for the samples that a device processes at once under this strategy."""
    run = TrainingRun(job.place.world, job.settings.batch, footprint, accumulate=job.settings.accumulate)
    samples = request.strategy.samples_at_once(run)
    return layers_of(job.workload, job.data, samples, job.place.device, job.settings.precision)


class _Run:
    """State of the training loop between steps."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        total: int,
        report: Callable[[Report], None],
        peak: PeakMemory,
    ) -> None:
        self.job, self.engine, self.total = job, engine, total
        self.report, self.peak = report, peak
        self.stop: GracefulStop = job.place.stop
        self.stopped = False
        self.save_seconds: float | None = None
        """Cost of the last checkpoint."""
        self.done = self.first = self.saved_step = self.next_save = self.collected_step = self.epoch = 0
        self.began = 0.0
        self.collected_at = perf_counter()
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
        self.outcome.copied = engine.copied
        if client := engine.server_client:
            self.outcome.traffic.servers = client.addresses
            self.outcome.traffic.except_port = client.store_port
        self.stream = Stream(job.settings.seed, engine.stream, job.place.world)
        self.stream.begin()
        if job.settings.resume and job.settings.checkpoint:
            engine.restore(self._load)
        self.warm_up = min(5, (total - self.done) // 4)

    def run(self) -> None:
        per_epoch = steps_per_epoch(len(self.job.data), self.job.settings.batch)
        self.first = self.saved_step = self.done
        self.next_save = self.done + FIRST_CHOICE_STEPS
        self.began = perf_counter()
        self.stop.start(self.done)
        while self.done < self.total and not self.stopped:
            self.epoch, skipped = divmod(self.done, per_epoch)
            order = epoch_order(self.job.settings.seed, self.epoch, len(self.job.data))
            batches = list(order.split(self.job.settings.batch))[skipped : skipped + self.total - self.done]
            seconds = self._run_epoch(batches)
            if len(batches) == per_epoch and not self.stopped:
                self.epochs.append((self.done - self.first - per_epoch, self.done - self.first, seconds))
            if self.done == self.total or self.stopped or self.job.settings.checkpoint_every != "auto":
                self._save()
        self.outcome.steps, self.outcome.resumed_at = self.done - self.first, self.first
        self.outcome.run_seconds = perf_counter() - self.began
        self.outcome.interrupted, self.outcome.last_step = self.stopped, self.done

    def epoch_seconds(self, times: Times) -> list[float]:
        """Seconds of every whole epoch.

        On a GPU the sum of step times as the GPU timed them, because the loop may be epochs ahead of the GPU.
        """
        if self.job.place.device.type == "cpu":
            return [seconds for _, _, seconds in self.epochs]
        return [sum(times.all_seconds[first:end]) for first, end, _ in self.epochs]

    def _run_epoch(self, batches: list[Tensor]) -> float:
        """Run one epoch; return its seconds without those spent on checkpoints and on counting bytes and memory."""
        excluded = 0.0
        started = reported_at = perf_counter()
        excluded -= self.job.report.compile_seconds
        self.engine.start_epoch(batches)
        excluded += self.job.report.compile_seconds
        first, last = self._counted_steps(batches)
        for position in range(len(batches)):
            if not self.stop.may_begin(self.done):
                self.stopped = True
                break
            if position == first:
                excluded -= perf_counter()
                self.job.clock.close()
                self.outcome.traffic.start(dist.barrier)
                excluded += perf_counter()
            self.engine.step()
            self.done += 1
            excluded -= perf_counter()
            self.peak.after_step(self.done - self.first)
            excluded += perf_counter()
            if position == last:
                excluded -= perf_counter()
                self.job.clock.close()
                self.outcome.traffic.stop(last - first + 1, dist.barrier)
                excluded += perf_counter()
            if self._is_save_due():
                excluded -= perf_counter()
                self._collect()
                self._save()
                excluded += perf_counter()
            now = perf_counter()
            if now - reported_at > SECONDS_BETWEEN_REPORTS:
                self.report(Report(self.done, self.total, self.epoch))
                reported_at = now
        seconds = perf_counter() - started - excluded
        if self._is_collection_due():
            self.job.clock.close()
            self._collect()
        return seconds

    def _is_collection_due(self) -> bool:
        """Whether to wait for the device now and read losses and times.

        A single GPU is waited for only now and then. With several ranks the answer is always yes, so that all agree.
        """
        return (
            self.job.place.device.type == "cpu"
            or self.job.place.world > 1
            or self.job.settings.checkpoint is not None
            or self.done == self.total
            or self.stopped
            or self.done - self.collected_step > MOST_PENDING_STEPS
            or perf_counter() - self.collected_at > SECONDS_BETWEEN_REPORTS
        )

    def _collect(self) -> None:
        self._record_losses(self.engine.losses())
        self.job.clock.collect()
        self.collected_at, self.collected_step = perf_counter(), self.done
        self.report(Report(self.done, self.total, self.epoch, self.outcome.loss))

    def _counted_steps(self, batches: list[Tensor]) -> tuple[int, int]:
        """First and last step whose sent bytes are counted: full batches after the warm-up and before a checkpoint."""
        if not dist.is_initialized() or dist.get_backend() != "gloo" or not byte_counters.available():
            return -1, -1
        first = max(0, self.warm_up - (self.done - self.first))
        last = len(batches) - 1 - (len(batches[-1]) < self.job.settings.batch)
        every = self.job.settings.checkpoint_every
        if every == "auto":
            last = min(last, self.next_save - self.done - 1)
        elif every:
            last = min(last, every - self.done % every - 1)
        return (first, last) if first <= last else (-1, -1)

    def _record_losses(self, losses: Tensor) -> None:
        if len(losses) == 0:
            return
        not_finite = torch.nonzero(~torch.isfinite(losses))
        if len(not_finite):
            step = self.done - len(losses) + int(not_finite[0]) + 1
            loss = float(losses[not_finite[0]])
            raise RunFailed(f"the loss became {loss} at step {step}", LowerLearningRate(self.job.learning_rate))
        self.outcome.losses += losses.tolist()
        self.outcome.loss = self.outcome.losses[-1]

    def _is_save_due(self) -> bool:
        every = self.job.settings.checkpoint_every
        if every == "auto":
            return self.done == self.next_save
        return every is not None and self.done % every == 0

    def _save(self) -> None:
        """Save a checkpoint, or with `--checkpoint-every auto` decide that it is too early."""
        is_auto, is_last = self.job.settings.checkpoint_every == "auto", self.stopped or self.done == self.total
        if is_auto and not is_last and self._choose_next_save() > self.done:
            return
        before = perf_counter()
        self._save_now()
        cost = perf_counter() - before
        self.outcome.checkpoint_seconds += cost
        self.save_seconds, self.next_save = cost, self.done + 1

    def _choose_next_save(self) -> int:
        """Return the next step of a checkpoint or of another decision, which rank 0 chooses."""
        steps, spent = self.done - self.first, self.outcome.checkpoint_seconds
        cost = self.save_seconds or estimated_save_seconds(self.outcome.parameters)
        chosen = torch.tensor([next_save(self.done, steps, perf_counter() - self.began, spent, cost)])
        if self.job.place.world > 1:
            chosen = chosen.to(self.job.place.device if dist.get_backend() == "nccl" else "cpu")
            dist.broadcast(chosen, 0)
        self.next_save = int(chosen)
        return self.next_save

    def _save_now(self) -> None:
        path = self.job.settings.checkpoint
        if path is None or self.engine.server_client:  # with parameter servers, server 0 writes the checkpoint
            return
        if self.done == self.saved_step:
            return
        self.saved_step = self.done
        self.outcome.checkpoints += 1
        whole = self.engine.whole()
        random = states_of_all(self.job.place.rank, self.job.place.world)
        if whole and whole.optimizer:
            keep = self.job.settings.keep_checkpoints
            if not all(torch.isfinite(parameter).all() for parameter in whole.model.parameters()):
                raise RunFailed(
                    f"the weights became infinite or NaN by step {self.done}; a learning rate below "
                    f"{self.job.learning_rate:g} may help"
                )
            save_checkpoint(path, whole.model, whole.optimizer, self._progress(), random, self.job.scaler, keep)

    def _load(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        path = self.job.settings.checkpoint
        assert path is not None
        self.done = load_checkpoint(path, model, optimizer, self._progress(), self.stream, self.job.scaler).steps_done

    def _progress(self) -> Progress:
        return progress_of(self.job.workload, len(self.job.data), self.job.settings, self.done)
