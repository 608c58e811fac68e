"""Training loop of asynchronous parameter-server workers, and the summary of its outcomes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.core.errors import LowerLearningRate, RunFailed
from scalewise.core.training_options import Settings, steps_per_epoch
from scalewise.engines.base import Job, Place, predictions_of
from scalewise.engines.parameter_server import join_servers
from scalewise.formats.train_result import Staleness, Updates
from scalewise.models.footprint import footprint_of
from scalewise.models.parameters import refuse_unreached
from scalewise.parameter_server.checkpoints import Beside
from scalewise.parameter_server.client import FIRST_STEP, Client
from scalewise.parameter_server.server import Served
from scalewise.runtime import byte_counters
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.device_memory import MemoryLimit, PeakMemory
from scalewise.runtime.execution import seed_of
from scalewise.runtime.feed import Feed, Shard, epoch_order, shards_of
from scalewise.runtime.optimizers import autocast, set_precision
from scalewise.strategies.plan import share_sizes
from scalewise.training.loop import accuracy_of, layer_memories
from scalewise.training.results import SECONDS_BETWEEN_REPORTS, Outcome, Report, Request, Update, at_intervals


@dataclass(frozen=True)
class BatchPart:
    """Share of one batch that one worker computes."""

    ticket: int
    """Number of this part among the parts of all batches."""
    step: int
    number: int
    """Position among the parts of its batch."""
    epoch: int
    shards: list[Shard]

    @property
    def samples(self) -> int:
        return sum(len(shard.rows) for shard in self.shards)


_TICKETS, _LATE_TICKETS, _STOP, _ISSUED = "tickets", "late tickets", "stop", "issued"
_STOPPED = 2**60
"""Added to the counter of tickets by the first worker that stops. Later tickets are above it, and a second counter
numbers those that complete the last batch."""


def last_step(store: Store, first: int, total: int, workers: int) -> int:
    """Number of finished steps at the end of a run: `total`, or less if the run was stopped."""
    if not store.check([_ISSUED]):
        return total
    return min(total, first + -(-int(store.get(_ISSUED)) // workers))


@dataclass(frozen=True)
class Tickets:
    """Iterable of the batch parts that this worker takes from a counter shared by all workers."""

    job: Job
    first: int
    total: int

    def __iter__(self) -> Iterator[BatchPart]:
        place, settings, samples = self.job.place, self.job.settings, len(self.job.data)
        per_epoch = steps_per_epoch(samples, settings.batch)
        cached_epoch, batches = -1, list[Tensor]()
        assert place.store is not None
        while (number := self._next(place.store)) is not None:
            ticket = self.first * place.world + number
            step, number = divmod(ticket, place.world)
            if step >= self.total:
                return
            epoch, batch = divmod(step, per_epoch)
            if cached_epoch != epoch:
                cached_epoch, batches = epoch, list(epoch_order(settings.seed, epoch, samples).split(settings.batch))
            rows = batches[batch]
            if share_sizes(len(rows), place.world)[number]:
                yield BatchPart(ticket, step, number, epoch, shards_of(rows, place.world, number, settings.accumulate))

    def _next(self, store: Store) -> int | None:
        """Take the number of the next part; None if the run is stopped and its last batch is complete."""
        world, worker = self.job.place.world, str(self.job.place.rank)
        if self.job.place.stop.requested and not store.check([_ISSUED]):
            is_first = store.compare_set(_STOP, "", worker).decode() == worker
            if is_first:
                store.set(_ISSUED, str(store.add(_TICKETS, _STOPPED) - _STOPPED))
        number = int(store.add(_TICKETS, 1)) - 1
        if number < _STOPPED:
            return number
        issued = int(store.get(_ISSUED))
        number = issued + int(store.add(_LATE_TICKETS, 1)) - 1
        return number if number < -(-issued // world) * world else None

    @property
    def last(self) -> int:
        """Number of the last ticket that has samples."""
        place, samples, batch = self.job.place, len(self.job.data), self.job.settings.batch
        last_batch = (self.total - 1) % steps_per_epoch(samples, batch)
        samples_in_last = min(batch, samples - last_batch * batch)
        return (self.total - 1) * place.world + min(samples_in_last, place.world) - 1


@dataclass
class PartQueue:
    """Queue of the parts this worker has taken; data loaders may read the rows of parts before they are computed.

    A part is taken when either the loop or a loader needs the next one.
    """

    tickets: Iterator[BatchPart]
    _to_compute: deque[BatchPart] = field(default_factory=deque)
    _to_load: deque[BatchPart] = field(default_factory=deque)

    def __iter__(self) -> Iterator[BatchPart]:
        while self._to_compute or self._take():
            yield self._to_compute.popleft()

    def rows(self) -> Iterator[Tensor]:
        while self._to_load or self._take():
            for shard in self._to_load.popleft().shards:
                yield shard.rows

    def _take(self) -> bool:
        part = next(self.tickets, None)
        if part is None:
            return False
        self._to_compute.append(part)
        self._to_load.append(part)
        return True


WARM_UP = 2
UNKNOWN_STEPS = 0
"""Step count given to PeakMemory: a worker cannot know how many parts it will take. On a CPU, peak memory of a run of
too few steps is measured only under a memory limit."""


def train_asynchronously(place: Place, request: Request, report: Callable[[Report], None]) -> Outcome:
    """Train on this worker until no batch part is left. A slow worker takes fewer parts, a dead one none."""
    with MemoryLimit(place.device) as limit, PeakMemory(place.device) as peak:
        return _train_within(limit, peak, place, request, report)


def _train_within(
    limit: MemoryLimit, peak: PeakMemory, place: Place, request: Request, report: Callable[[Report], None]
) -> Outcome:
    settings = request.settings
    settings.check()
    request.strategy.check_execution(settings.execution_options)
    workload = request.resolved()
    data = workload.data(request.data)
    settings.check_fits(len(data), data.source)
    set_precision(settings.precision, place.device)
    torch.manual_seed(settings.seed)
    times = Times()
    job = Job.of(workload, data, settings, place, make_clock(place.device, times))
    peak.watch(steps=UNKNOWN_STEPS, limited=limit.limit_bytes is not None)
    with limit.building(peak.look):
        model, feed, client = join_servers(request.strategy, job)
    # The checkpoint is not read here: the servers may have replaced it before a late worker starts.
    assert place.store is not None
    first = int(place.store.get(FIRST_STEP))
    worker_state = Beside(place.store, workers=None)
    worker_state.hear(model, first)
    tickets = Tickets(job, first, settings.total_steps(len(data)))
    outcome = Outcome(
        source=data.source,
        samples=len(data),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        execution="eager",
        load=feed.kind,
        why_streamed=feed.why,
        steps=0,
        resumed_at=first,
        worker=place.rank,
    )
    times.warm_up = WARM_UP
    outcome.traffic.servers = client.addresses
    bytes_before = byte_counters.snapshot() if byte_counters.available() else None
    _train_parts(job, model, feed, client, tickets, worker_state, outcome, report, peak)
    if bytes_before is not None:
        outcome.traffic.add_lines(byte_counters.snapshot() - bytes_before, len(outcome.updates))
    outcome.last_step = last_step(place.store, first, tickets.total, place.world)
    outcome.interrupted = outcome.last_step < tickets.total
    if outcome.interrupted and settings.checkpoint and outcome.updates:
        worker_state.tell(model, outcome.updates[-1].ticket // place.world + 1)
    client.leave()
    job.clock.close()
    job.clock.collect()
    outcome.steps = len(outcome.updates)
    if outcome.interrupted:
        return outcome
    outcome.acknowledged = client.acknowledged
    outcome.step_seconds, outcome.phases, outcome.spans = times.step_seconds, times.phases, times.spans(place.rank)
    outcome.peak_memory_bytes = peak.read()
    epoch = outcome.updates[-1].epoch if outcome.updates else 0
    report_alive = at_intervals(lambda: report(Report(tickets.total, tickets.total, epoch)))
    outcome.footprint = footprint_of(workload, data)
    report_alive()
    limit.lift()
    # Every worker measures the layers, because worker 0 may have died.
    outcome.layers = layer_memories(job, request, outcome.footprint)
    report_alive()
    if outcome.updates and outcome.updates[-1].ticket == tickets.last:
        predictions = partial(predictions_of, model, feed)
        samples_trained = min(len(data), tickets.total * settings.batch)
        outcome.accuracy = accuracy_of(workload, predictions, samples_trained, settings.batch, report_alive)
    return outcome


def _train_parts(
    job: Job,
    model: nn.Module,
    feed: Feed,
    client: Client,
    tickets: Tickets,
    worker_state: Beside,
    outcome: Outcome,
    report: Callable[[Report], None],
    peak: PeakMemory,
) -> None:
    place, settings, clock = job.place, job.settings, job.clock
    reported_at = 0.0
    parts = PartQueue(iter(tickets))
    batches = feed.as_asked(parts.rows())  # one set of loaders for the whole run
    for part in parts:
        started = perf_counter()
        clock.start()
        # The seed depends on the part, not on the worker: results are the same whichever worker takes the part, also
        # after a death, and a resumed run needs no saved generator state.
        torch.manual_seed(seed_of(settings.seed, part.ticket))
        samples, losses = part.samples, torch.zeros((), device=place.device)
        # `part.shards` comes first in zip: otherwise zip would take one batch too many.
        for shard, (inputs, targets) in zip(part.shards, batches, strict=False):
            clock.lap("load")
            is_last = shard is part.shards[-1]
            if is_last:
                client.begin(samples)
            with autocast(settings.precision, place.device):
                outputs = model(inputs)
                clock.lap("forward")
                loss = job.workload.loss(outputs, targets) * (len(shard.rows) / samples)
                losses += loss.detach()
            clock.lap("loss")
            if is_last and not client.on_gpu:  # checked before backward, which already sends gradients
                _refuse_unless_finite(float(losses), part, job)
            loss.backward()
            clock.lap("backward")
        total = float(losses)
        _refuse_unless_finite(total, part, job)
        if unreached := client.unreached():
            refuse_unreached(model, unreached)
        if _shares_state(part, job, first=not outcome.updates):
            worker_state.tell(model, part.step + 1)
        client.finish_pushes()
        clock.lap("push")
        client.finish_pulls()
        clock.lap("pull")
        clock.close()  # taking the next part does not count as a phase of a step
        now = perf_counter()
        outcome.updates.append(Update(part.ticket, part.epoch, samples, total, started, now))
        peak.after_step(len(outcome.updates))
        if now - reported_at > SECONDS_BETWEEN_REPORTS:
            report(Report(part.step + 1, tickets.total, part.epoch, total))
            reported_at = now


def _refuse_unless_finite(loss: float, part: BatchPart, job: Job) -> None:
    """Raise RunFailed before servers apply gradients of an infinite or NaN loss."""
    if not math.isfinite(loss):
        raise RunFailed(
            f"the loss became {loss} at step {part.step + 1} of worker {job.place.rank}",
            LowerLearningRate(job.learning_rate),
        )


def _shares_state(part: BatchPart, job: Job, *, first: bool) -> bool:
    """Whether to store this worker's buffers and random state for the next checkpoint.

    Every worker does so in its first part, and whichever worker computes part 0 of a batch after which a checkpoint is
    due.
    """
    if job.settings.checkpoint is None:
        return False
    return first or (part.number == 0 and job.settings.saves_after(part.step + 1, len(job.data)))


def step_seconds(outcomes: list[Outcome]) -> list[float]:
    """Seconds of every step, where a step is one update by one worker."""
    return [seconds for outcome in outcomes for seconds in outcome.step_seconds]


def updates_by_end(outcomes: list[Outcome]) -> list[Update]:
    """Updates of all workers, sorted by their end."""
    return sorted((update for outcome in outcomes for update in outcome.updates), key=lambda update: update.ended)


def epoch_seconds(outcomes: list[Outcome], settings: Settings) -> list[float]:
    """Seconds of every whole epoch: from its first update to the first update of the next epoch, or to the end.

    Epochs of asynchronous workers overlap, so their ends do not separate them. An epoch is whole if this run assigned
    all of its parts, including parts lost with a worker that died.
    """
    updates = updates_by_end(outcomes)
    starts: dict[int, float] = {}
    for update in updates:
        starts[update.epoch] = min(update.started, starts.get(update.epoch, update.started))
    moments = [*(starts[epoch] for epoch in sorted(starts)), max(update.ended for update in updates)]
    samples, first_step = outcomes[0].samples, outcomes[0].resumed_at
    per_epoch, total = steps_per_epoch(samples, settings.batch), settings.total_steps(samples)
    whole = [first_step <= epoch * per_epoch and (epoch + 1) * per_epoch <= total for epoch in sorted(starts)]
    return [end - start for (start, end), is_whole in zip(pairwise(moments), whole, strict=True) if is_whole]


def samples_per_second(outcomes: list[Outcome]) -> float | None:
    """Samples per second of all workers together, after the first two updates of each until the first worker ends.

    An update that lies only partly in that window counts in proportion; in a short run it may outlast the window.
    """
    begin = max(outcome.updates[min(2, len(outcome.updates) - 1)].started for outcome in outcomes if outcome.updates)
    end = min(outcome.updates[-1].ended for outcome in outcomes if outcome.updates)
    if end <= begin:
        return None

    def share_in_window(update: Update) -> float:
        seconds = min(end, update.ended) - max(begin, update.started)
        return max(0.0, seconds) / (update.ended - update.started)

    return sum(update.samples * share_in_window(update) for update in updates_by_end(outcomes)) / (end - begin)


def last_loss(outcomes: list[Outcome], workers: int) -> float:
    """Mean loss of the last batch, over its parts that were applied, each before its update."""
    updates = [update for outcome in outcomes for update in outcome.updates]
    last = max(update.ticket // workers for update in updates)
    parts = [update for update in updates if update.ticket // workers == last]
    return sum(part.loss * part.samples for part in parts) / sum(part.samples for part in parts)


def curve(outcomes: list[Outcome]) -> list[tuple[float, float, int]]:
    """Loss curve: (seconds since the first worker started, loss, samples) at the end of every update."""
    updates = updates_by_end(outcomes)
    begin = min(update.started for update in updates)
    return [(update.ended - begin, update.loss, update.samples) for update in updates]


def staleness(served: list[Served]) -> Staleness:
    """Staleness over all servers. Each server counts its own versions and its piece of every update."""
    histogram: Counter[int] = sum((server.staleness for server in served), Counter())
    count = sum(histogram.values())
    mean = sum(versions * times for versions, times in histogram.items()) / count if count else 0.0
    return Staleness(mean, max(histogram, default=0), {versions: histogram[versions] for versions in sorted(histogram)})


def updates(served: list[Served], outcomes: list[Outcome], workers: int) -> Updates:
    last = max(update.ticket for outcome in outcomes for update in outcome.updates)
    return Updates(
        applied=served[0].applied,
        acknowledged=sum(served[0].acknowledged.values()),
        by_worker={worker: served[0].acknowledged.get(worker, 0) for worker in range(workers)},
        seen_by_workers=sum(outcome.acknowledged for outcome in outcomes),
        batches=last // workers + 1 - outcomes[0].resumed_at,
        versions=served[0].versions,
    )


@dataclass
class StepCounter:
    """Counts finished steps from the pushes that servers have applied.

    A step is one batch: one push by every worker that the batch has a sample for. Versions of the weights cannot be
    counted instead, because servers may combine several pushes into one version.
    """

    done: int
    """Steps finished before the first push that is counted."""
    samples: int
    batch: int
    workers: int
    counted: int = 0
    """Pushes of the steps finished since then."""

    def after(self, pushes: int) -> int:
        """Return the number of finished steps after `pushes` pushes in total."""
        while self.counted + self._pushes_of(self.done) <= pushes:
            self.counted += self._pushes_of(self.done)
            self.done += 1
        return self.done

    def _pushes_of(self, step: int) -> int:
        number = step % steps_per_epoch(self.samples, self.batch)
        return min(self.batch, self.samples - number * self.batch, self.workers)
