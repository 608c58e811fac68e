"""The loop of an asynchronous worker: take the next part of the work, compute, push, pull, until there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import nn

from scalewise.engines.engine import Job, Place
from scalewise.engines.holding import predictions_of
from scalewise.engines.parameter_server import join_servers
from scalewise.errors import RunFailed
from scalewise.servers.beside import Beside
from scalewise.servers.client import Client
from scalewise.servers.meeting import FIRST_STEP
from scalewise.step.clock import Times, make_clock
from scalewise.step.feed import Feed
from scalewise.step.left_out import refuse_unreached
from scalewise.step.memory import PeakMemory
from scalewise.step.precision import autocast, set_precision
from scalewise.step.room import Room
from scalewise.step.streams import seed_of
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.tracing import sockets
from scalewise.training.evaluate import accuracy_of
from scalewise.training.loop import layers_to_plan
from scalewise.training.outcome import Outcome, Report, Update
from scalewise.training.pace import SECONDS_BETWEEN_REPORTS, at_intervals
from scalewise.training.request import Request
from scalewise.training.tickets import InHand, Part, Tickets
from scalewise.workloads.footprint import footprint_of

WARM_UP = 2
NEVER_BY_ITSELF = 0
"""Steps of a worker that is not known to take enough parts for its first ones to be watched, before any is timed."""


def train_asynchronously(
    place: Place, request: Request, strategy: ParameterServerAsync, report: Callable[[Report], None]
) -> Outcome:
    """Parts of batches are taken from one list by whoever is free: a slow worker takes fewer, a dead one no more."""
    with Room(place.device, strategy.name) as room, PeakMemory(place.device) as peak:
        return _train_in(room, peak, place, request, strategy, report)


def _train_in(
    room: Room,
    peak: PeakMemory,
    place: Place,
    request: Request,
    strategy: ParameterServerAsync,
    report: Callable[[Report], None],
) -> Outcome:
    settings = request.settings
    settings.check()
    workload = request.resolved()
    data = workload.data(request.data)
    settings.check_fits(len(data), data.source)
    set_precision(settings.precision, place.device)
    torch.manual_seed(settings.seed)
    times = Times()
    job = Job(workload, data, settings, place, make_clock(place.device, times))
    peak.watch(job.clock, steps=NEVER_BY_ITSELF, anyway=room.limit_bytes is not None)
    with room.building(peak.look):
        model, feed, client = join_servers(strategy, job)
    # Not from the checkpoint: by the time a late worker reads it, the servers may have written the next.
    assert place.store is not None
    first = int(place.store.get(FIRST_STEP))
    beside = Beside(place.store, workers=None)
    beside.hear(model, first)
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
    before = sockets.snapshot() if sockets.available() else None
    _work(job, model, feed, client, tickets, beside, outcome, report, peak)
    if before is not None:
        outcome.traffic.add_lines(sockets.snapshot() - before, len(outcome.updates))
    client.leave()
    job.clock.close()
    job.clock.collect()
    outcome.steps = len(outcome.updates)
    outcome.acknowledged = client.acknowledged
    outcome.step_seconds, outcome.phases, outcome.spans = times.step_seconds, times.phases, times.spans(place.rank)
    outcome.peak_memory_bytes = peak.read()
    epoch = outcome.updates[-1].epoch if outcome.updates else 0
    got_on = at_intervals(lambda: report(Report(tickets.total, tickets.total, epoch)))
    outcome.footprint = footprint_of(workload, data)
    got_on()
    outcome.layers = layers_to_plan(job, request, outcome.footprint)  # on every worker: the first may not live so long
    got_on()
    if outcome.updates and outcome.updates[-1].ticket == tickets.last:
        predictions = partial(predictions_of, model, feed)
        seen = min(len(data), tickets.total * settings.batch)
        outcome.accuracy = accuracy_of(workload, predictions, seen, settings.batch, got_on)
    return outcome


def _work(
    job: Job,
    model: nn.Module,
    feed: Feed,
    client: Client,
    tickets: Tickets,
    beside: Beside,
    outcome: Outcome,
    report: Callable[[Report], None],
    peak: PeakMemory,
) -> None:
    place, settings, clock = job.place, job.settings, job.clock
    reported = 0.0
    in_hand = InHand(iter(tickets))
    batches = feed.as_asked(in_hand.rows())  # loaders live as long as the work lasts
    for part in in_hand:
        started = perf_counter()
        clock.start()
        # The work's, not the worker's: alike whoever does it, also after a death, and nothing to keep for a resume.
        torch.manual_seed(seed_of(settings.seed, part.ticket))
        samples, losses = part.samples, torch.zeros((), device=place.device)
        for shard, (inputs, targets) in zip(
            part.shards, batches, strict=False
        ):  # in this order: it takes none too many
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
            if is_last and not client.on_gpu:  # before backward, from inside which gradients leave
                _refuse_unless_finite(float(losses), part, job)
            loss.backward()
            clock.lap("backward")
        total = float(losses)
        _refuse_unless_finite(total, part, job)
        if unreached := client.unreached():
            refuse_unreached(model, unreached)
        if _tells(part, job, first=not outcome.updates):
            beside.tell(model, part.step + 1)
        client.finish_pushes()
        clock.lap("push")
        client.finish_pulls()
        clock.lap("pull")
        clock.close()  # to take the next part is no step's
        now = perf_counter()
        outcome.updates.append(Update(part.ticket, part.epoch, samples, total, started, now))
        peak.after_step(len(outcome.updates))
        if now - reported > SECONDS_BETWEEN_REPORTS:
            report(Report(part.step + 1, tickets.total, part.epoch, total))
            reported = now


def _refuse_unless_finite(loss: float, part: Part, job: Job) -> None:
    """Servers are not to apply such a push."""
    if not math.isfinite(loss):
        raise RunFailed(
            f"the loss became {loss} at step {part.step + 1} of worker {job.place.rank}; a lower "
            f"--learning-rate than {job.learning_rate:g} may help"
        )


def _tells(part: Part, job: Job, *, first: bool) -> bool:
    """Whether a checkpoint that this part may make due is to have this worker's buffers: one of each batch has to
    come before it is, and any at all before the first."""
    if job.settings.checkpoint is None:
        return False
    return first or (part.number == 0 and job.settings.saves_after(part.step + 1, len(job.data)))
