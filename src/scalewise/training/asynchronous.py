"""The loop of an asynchronous worker: take the next part of the work, compute, push, pull, until there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn

from scalewise.engines.engine import Job, Place
from scalewise.engines.holding import predictions_of
from scalewise.engines.parameter_server import join_servers
from scalewise.errors import RunFailed
from scalewise.servers.client import Client
from scalewise.servers.meeting import FIRST_STEP
from scalewise.step.clock import Times, make_clock
from scalewise.step.feed import Feed
from scalewise.step.memory import forget_peak_memory
from scalewise.step.precision import autocast, set_precision
from scalewise.step.settings import steps_per_epoch
from scalewise.step.shards import epoch_order, shards_of
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.shares import share_sizes
from scalewise.tracing import sockets
from scalewise.training.evaluate import accuracy_of
from scalewise.training.loop import SECONDS_BETWEEN_REPORTS, Outcome, Report, Update, layers_to_plan
from scalewise.training.request import Request
from scalewise.workloads.footprint import footprint_of

WARM_UP = 2


def train_asynchronously(
    place: Place, request: Request, strategy: ParameterServerAsync, report: Callable[[Report], None]
) -> Outcome:
    """Parts of batches are taken from one list by whoever is free: a slow worker takes fewer, a dead one no more."""
    settings = request.settings
    settings.check()
    workload = request.resolved()
    data = workload.data(request.data)
    settings.check_fits(len(data), data.source)
    set_precision(settings.precision, place.device)
    torch.manual_seed(settings.seed)
    forget_peak_memory(place.device)
    times = Times()
    job = Job(workload, data, settings, place, make_clock(place.device, times))
    model, feed, client = join_servers(strategy, job)
    # Not from the checkpoint: by the time a late worker reads it, the servers may have written the next.
    assert place.store is not None
    first = int(place.store.get(FIRST_STEP))
    total = settings.total_steps(len(data))
    outcome = Outcome(
        source=data.source,
        samples=len(data),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        execution="eager",
        load=feed.kind,
        steps=0,
        resumed_at=first,
    )
    times.warm_up = WARM_UP
    outcome.traffic.servers = client.addresses
    before = sockets.snapshot() if sockets.available() else None
    _work(job, model, feed, client, Tickets(job, first, total), outcome, report)
    if before is not None:
        outcome.traffic.add_lines(sockets.snapshot() - before, len(outcome.updates))
    client.leave()
    job.clock.close()
    job.clock.collect()
    outcome.steps = len(outcome.updates)
    outcome.acknowledged = client.acknowledged
    outcome.step_seconds, outcome.phases, outcome.spans = times.step_seconds, times.phases, times.spans(place.rank)
    outcome.peak_memory_bytes = torch.cuda.max_memory_allocated() if place.device.type == "cuda" else None
    outcome.footprint = footprint_of(workload, data)
    if place.rank == 0:
        outcome.layers = layers_to_plan(job, request, outcome.footprint)
    last = outcome.updates[-1].ticket if outcome.updates else -1
    if last == (total * place.world - 1):
        predictions = partial(predictions_of, model, feed)
        outcome.accuracy = accuracy_of(workload, predictions, min(len(data), total * settings.batch), settings.batch)
    return outcome


@dataclass(frozen=True)
class Tickets:
    """The work: every part of every batch once, in order, to whoever asks first."""

    job: Job
    first: int
    total: int

    def __iter__(self) -> Iterator[tuple[int, int, Tensor, int]]:
        """(ticket, epoch, rows of the whole batch, which part of it)."""
        place, settings, samples = self.job.place, self.job.settings, len(self.job.data)
        per_epoch = steps_per_epoch(samples, settings.batch)
        known: tuple[int, list[Tensor]] = (-1, [])
        assert place.store is not None
        while True:
            ticket = self.first * place.world + place.store.add("tickets", 1) - 1
            step, part = divmod(ticket, place.world)
            if step >= self.total:
                return
            epoch, number = divmod(step, per_epoch)
            if known[0] != epoch:
                known = epoch, list(epoch_order(settings.seed, epoch, samples).split(settings.batch))
            rows = known[1][number]
            if share_sizes(len(rows), place.world)[part]:
                yield ticket, epoch, rows, part


def _work(
    job: Job,
    model: nn.Module,
    feed: Feed,
    client: Client,
    tickets: Tickets,
    outcome: Outcome,
    report: Callable[[Report], None],
) -> None:
    place, settings, clock = job.place, job.settings, job.clock
    reported = 0.0
    for ticket, epoch, rows, part in tickets:
        started = perf_counter()
        clock.start()
        shards = shards_of(rows, place.world, part, settings.accumulate)
        samples = sum(len(shard.rows) for shard in shards)
        total = 0.0
        for shard, (inputs, targets) in zip(shards, feed.batches([shard.rows for shard in shards]), strict=True):
            clock.lap("load")
            if shard is shards[-1]:
                client.begin(samples)
            with autocast(settings.precision, place.device):
                outputs = model(inputs)
                clock.lap("forward")
                loss = job.workload.loss(outputs, targets) * (len(shard.rows) / samples)
            clock.lap("loss")
            loss.backward()
            clock.lap("backward")
            total += float(loss.detach())
        if not math.isfinite(total):  # before the servers have all of it, and apply it
            raise RunFailed(
                f"the loss became {total} at step {ticket // place.world + 1} of worker {place.rank}; a lower "
                f"--learning-rate than {job.learning_rate:g} may help"
            )
        client.finish_pushes()
        clock.lap("push")
        client.finish_pulls()
        clock.lap("pull")
        clock.close()  # to take the next part is no step's
        now = perf_counter()
        outcome.updates.append(Update(ticket, epoch, samples, total, started, now))
        if now - reported > SECONDS_BETWEEN_REPORTS:
            report(Report(ticket // place.world + 1, tickets.total, epoch, total))
            reported = now
