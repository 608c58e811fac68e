"""The figures of an asynchronous run, from what its workers and servers bring back."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from scalewise.results.train import Staleness, Updates
from scalewise.servers.server import Served
from scalewise.step.settings import Settings, steps_per_epoch
from scalewise.training.outcome import Outcome, Update


def step_seconds(outcomes: list[Outcome]) -> list[float]:
    """A step is one update by one worker."""
    return [seconds for outcome in outcomes for seconds in outcome.step_seconds]


def in_order(outcomes: list[Outcome]) -> list[Update]:
    """All workers' updates as they ended."""
    return sorted((update for outcome in outcomes for update in outcome.updates), key=lambda update: update.ended)


def epoch_seconds(outcomes: list[Outcome], settings: Settings) -> list[float]:
    """From the first update of an epoch to the first of the next, or to the end; overlapping epochs cannot be cut
    otherwise. An epoch counts if its work was all given out in this run, also to workers that died with it."""
    updates = in_order(outcomes)
    starts: dict[int, float] = {}
    for update in updates:
        starts[update.epoch] = min(update.started, starts.get(update.epoch, update.started))
    moments = [*(starts[epoch] for epoch in sorted(starts)), max(update.ended for update in updates)]
    samples, begun = outcomes[0].samples, outcomes[0].resumed_at
    per_epoch, total = steps_per_epoch(samples, settings.batch), settings.total_steps(samples)
    whole = [begun <= epoch * per_epoch and (epoch + 1) * per_epoch <= total for epoch in sorted(starts)]
    return [later - earlier for (earlier, later), full in zip(pairwise(moments), whole, strict=True) if full]


def samples_per_second(outcomes: list[Outcome]) -> float | None:
    """Of all workers together, after each one's first two updates, until the first of them is through. An update that
    lies in that time in part counts in part: in short runs it may take longer than all of it."""
    begin = max(outcome.updates[min(2, len(outcome.updates) - 1)].started for outcome in outcomes if outcome.updates)
    end = min(outcome.updates[-1].ended for outcome in outcomes if outcome.updates)
    if end <= begin:
        return None

    def within(update: Update) -> float:
        seconds = min(end, update.ended) - max(begin, update.started)
        return max(0.0, seconds) / (update.ended - update.started)

    return sum(update.samples * within(update) for update in in_order(outcomes)) / (end - begin)


def last_loss(outcomes: list[Outcome], workers: int) -> float:
    """Mean over the last batch whose parts came through, each part as its worker saw it before its update."""
    updates = [update for outcome in outcomes for update in outcome.updates]
    last = max(update.ticket // workers for update in updates)
    parts = [update for update in updates if update.ticket // workers == last]
    return sum(part.loss * part.samples for part in parts) / sum(part.samples for part in parts)


def curve(outcomes: list[Outcome]) -> list[tuple[float, float, int]]:
    """(seconds since the first worker began, loss and samples of the update that then ended)."""
    updates = in_order(outcomes)
    begin = min(update.started for update in updates)
    return [(update.ended - begin, update.loss, update.samples) for update in updates]


def staleness(served: list[Served]) -> Staleness:
    """Over all servers: each counts its own versions, and its part of every update."""
    seen: Counter[int] = sum((each.staleness for each in served), Counter())
    count = sum(seen.values())
    mean = sum(versions * times for versions, times in seen.items()) / count if count else 0.0
    return Staleness(mean, max(seen, default=0), {versions: seen[versions] for versions in sorted(seen)})


def updates(served: list[Served], outcomes: list[Outcome], workers: int) -> Updates:
    last = max(update.ticket for outcome in outcomes for update in outcome.updates)
    return Updates(
        applied=served[0].applied,
        acknowledged=sum(served[0].acknowledged.values()),
        by_worker={worker: served[0].acknowledged[worker] for worker in sorted(served[0].acknowledged)},
        seen_by_workers=sum(outcome.acknowledged for outcome in outcomes),
        batches=last // workers + 1 - outcomes[0].resumed_at,
        versions=served[0].versions,
    )
