"""What ranks bring back, put together into one run's figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from scalewise.advice.rows import strategy_text
from scalewise.plan import Plan
from scalewise.prediction.held import Run
from scalewise.prediction.holdings import held_by
from scalewise.prediction.memory import peak_memory
from scalewise.results.memory import MemoryPerDevice
from scalewise.results.train import BytesPerStep
from scalewise.results.units import seconds_text
from scalewise.session.cores import allowed_cores
from scalewise.session.placement import Placement
from scalewise.session.torchrun import under_torchrun
from scalewise.step.memory import FEWEST_STEPS
from scalewise.step.settings import steps_per_epoch
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.idling import idle_shares
from scalewise.strategies.layers import Layers
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.strategy import Backend, Strategy
from scalewise.timeline import Span, Timeline
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request

WHOLE_BATCHES = ("layers", "tensor")
"""Strategies under which every layer sees all samples of a batch at once."""


def timeline_of(outcomes: list[Outcome]) -> Timeline:
    """All ranks' spans, counted from the first one's start. Other hosts count from when they were switched on: ranks
    that never overlap with the first begin with it."""
    ranks = [outcome.spans for outcome in outcomes if outcome.spans]
    if not ranks:
        return Timeline(())
    first, ended = _extent(ranks[0])
    here = [
        spans if (extent := _extent(spans))[0] < ended and extent[1] > first else _moved(spans, first - extent[0])
        for spans in ranks
    ]
    origin = min(span.start for spans in here for span in spans)
    return Timeline(tuple(span for spans in here for span in _moved(spans, -origin)))


def _extent(spans: list[Span]) -> tuple[float, float]:
    return min(span.start for span in spans), max(span.start + span.seconds for span in spans)


def _moved(spans: list[Span], seconds: float) -> list[Span]:
    return [replace(span, start=span.start + seconds) for span in spans]


def slowest(ranks: list[list[float]]) -> list[float]:
    """A step, or an epoch, takes as long as it takes the slowest rank."""
    return [max(seconds) for seconds in zip(*ranks, strict=False)]


def pace_of(ranks: list[dict[str, float]], alone: float | None = None) -> int:
    """The rank that sets the pace: the first, which leads where one leads, unless another takes longer.

    Where each works alone none does: the one whose steps come closest to the median of all, `alone`.
    """
    totals = [sum(phases.values()) for phases in ranks]
    if alone is not None:
        return totals.index(min(filter(None, totals), key=lambda seconds: abs(seconds - alone), default=0.0))
    return 0 if totals[0] >= 0.95 * max(totals) else totals.index(max(totals))


def bytes_per_step(request: Request, placement: Placement, outcomes: list[Outcome]) -> BytesPerStep:
    """A step of workers on their own is one update; what is planned is one by each of them."""
    plan = _plan(request, placement, outcomes)
    updates = sum(len(outcome.updates) for outcome in outcomes)
    steps = placement.devices if updates else 1
    planned, busiest = plan.bytes_per_step // steps, plan.busiest_bytes // steps
    if not planned:
        return BytesPerStep(0, 0, 0)
    if copied := [outcome.copied for outcome in outcomes if outcome.copied]:
        # All of them go through the one host memory.
        counted = round(sum(each.per_step for each in copied))
        return BytesPerStep(planned, counted, counted, "counted copies")
    # One that came late may have found nothing left to do.
    traffic = [outcome.traffic for outcome in outcomes if outcome.updates or not updates]
    if _backend(placement) == "nccl" or not all(each.steps for each in traffic):
        return BytesPerStep(planned, None, busiest)
    parts = [each.steps / updates if updates else 1.0 for each in traffic]
    sent = sum(part * each.sent_per_step for part, each in zip(parts, traffic, strict=True))
    through = [part * (each.sent_per_step + each.received_per_step) for part, each in zip(parts, traffic, strict=True)]
    # What a server sends and receives is counted at the workers' end of the same connections.
    for server in {number for each in traffic for number in each.by_server}:
        flows = [(part, *each.with_server_per_step(server)) for part, each in zip(parts, traffic, strict=True)]
        sent += sum(part * received for part, _, received in flows)
        through.append(sum(part * (sent + received) for part, sent, received in flows))
    return BytesPerStep(planned, round(sent), round(max(through)))


def _plan(request: Request, placement: Placement, outcomes: list[Outcome]) -> Plan:
    footprint = outcomes[0].footprint
    assert footprint is not None
    return request.strategy.plan(footprint, placement.devices, request.settings.batch, _backend(placement))


def _backend(placement: Placement) -> Backend:
    return "nccl" if placement.device_kind == "cuda" else "gloo"


def spread_text(strategy: Strategy, microbatches: int | None = None) -> str:
    """The strategy as it is written on the command line, and the micro-batches that it chose by itself."""
    text = strategy_text(strategy)
    if isinstance(strategy, Pipeline) and strategy.microbatches is None and microbatches is not None:
        text += f" with {microbatches} micro-batch{'es' if microbatches > 1 else ''}"
    return text


def memory_of(request: Request, placement: Placement, outcomes: list[Outcome]) -> MemoryPerDevice:
    """Planned beside measured, of every rank."""
    first, settings = outcomes[0], request.settings
    on_gpu = placement.device_kind != "cpu"
    assert first.footprint is not None
    a_sample = first.footprint.input_bytes + first.footprint.target_bytes
    run = Run(
        placement.devices,
        settings.batch,
        first.footprint,
        on_gpu,
        through_host=placement.device_kind == "slice",
        accumulate=settings.accumulate,
        resident_bytes=first.samples * a_sample if on_gpu and first.load == "device" else 0,
    )
    optimizer = settings.optimizer or request.resolved().optimizer
    planned = [
        peak_memory(held_by(request.strategy, rank, run, first.layers), optimizer)
        for rank in range(placement.devices if first.layers else 0)
    ]
    measured = _by_rank(outcomes, placement.devices)
    most = max(planned, key=lambda memory: memory.total, default=None)
    return MemoryPerDevice(
        most.total if most else None,
        max((each for each in measured if each is not None), default=None),
        most.parts if most else {},
        [memory.total for memory in planned],
        measured,
        "cuda allocator" if on_gpu else "cpu allocator",
        "" if any(measured) else _why_not_watched(request, first),
    )


def _by_rank(outcomes: list[Outcome], devices: int) -> list[int | None]:
    """Asynchronous workers that died bring nothing back, and leave their places empty."""
    if not any(outcome.updates for outcome in outcomes):
        return [outcome.peak_memory_bytes for outcome in outcomes]
    found = {outcome.worker: outcome.peak_memory_bytes for outcome in outcomes}
    return [found.get(worker) for worker in range(devices)]


def _why_not_watched(request: Request, outcome: Outcome) -> str:
    if isinstance(request.strategy, ParameterServerAsync) and not request.strategy.exact:
        return "asynchronous workers are not watched"
    if request.settings.total_steps(outcome.samples) < FEWEST_STEPS:
        return f"runs of fewer than {FEWEST_STEPS} steps are not watched"
    return "another profiler was at work"


def notes_on(request: Request, placement: Placement, outcomes: list[Outcome]) -> list[str]:
    outcome = outcomes[0]
    notes = []
    if outcome.resumed_at:
        notes.append(f"resumed at step {outcome.resumed_at}, now at {_reached(outcomes, placement.devices)}")
    if outcome.source.startswith("synthetic"):
        notes.append(f"trained on {outcome.source}; fetch the study's recordings with: scalewise data speech")
    notes += dict.fromkeys(outcome.why_streamed for outcome in outcomes if outcome.why_streamed)
    if not request.strategy.exact:
        notes.append(f"{request.strategy.name} with these options is not exact: its weights differ from one device's")
    known = outcome.footprint
    seen = _seen_at_once(request.strategy, placement.devices, known.microbatches if known else None)
    if seen and known and known.norms_batches:
        notes.append(f"batch norm sees {seen} at a time: weights differ a little from those of one device")
    cores = len(allowed_cores())
    if placement.oversubscribed and not under_torchrun():  # whose ranks each know their own cores only
        notes.append(
            f"oversubscribed: {placement.devices} cpu devices share {cores} core{'s' if cores > 1 else ''}, so its "
            "times say little about real devices"
        )
    if outcome.copied and placement.device_kind == "cpu":
        notes.append("the cores of cpu devices make their copies themselves, so none overlap with computing")
    if outcome.copied and request.settings.precision == "bf16":
        notes.append(
            "bf16 casts of weights stay on the device from forward to backward, so half of the weights must fit, and "
            "backward fetches nothing for them"
        )
    if outcome.copied and request.settings.accumulate > 1:
        notes.append("weights are fetched, and gradients given, for every part of a batch; the plan is for one part")
    if request.strategy.name == "sharded" and request.settings.accumulate > 1:
        notes.append("weights are gathered, and gradients reduced, for every part of a batch; the plan is for one part")
    for rank, share in placement.slow.items():
        notes.append(f"rank {rank} was slowed down to {share:.0%} of its core")
    return notes + _straggler(outcomes) + _idling(request, placement, outcomes)


def _seen_at_once(strategy: Strategy, devices: int, microbatches: int | None) -> str:
    """What a layer sees of a batch; empty where it sees all of it."""
    if devices == 1 or strategy.name in WHOLE_BATCHES:
        return ""
    in_stages = isinstance(strategy, Pipeline) or (isinstance(strategy, Hybrid) and strategy.stages)
    if in_stages and microbatches != 1:
        return "one micro-batch"
    if isinstance(strategy, Hybrid):
        return "the samples of one group of devices" if devices > strategy.inside else ""
    return "" if in_stages else "one device's samples"


def _reached(outcomes: list[Outcome], workers: int) -> int:
    """The step that the run ended with; asynchronous workers count updates, of which each batch takes one by each."""
    tickets = [update.ticket for outcome in outcomes for update in outcome.updates]
    return max(tickets) // workers + 1 if tickets else outcomes[0].resumed_at + outcomes[0].steps


def _idling(request: Request, placement: Placement, outcomes: list[Outcome]) -> list[str]:
    """Devices that wait for each other by design, each its part of the step."""
    strategy = request.strategy
    in_stages = isinstance(strategy, (Layers, Pipeline)) or (isinstance(strategy, Hybrid) and strategy.stages)
    if not in_stages or len(outcomes) == 1:
        return []
    parts = [outcome.phases.get("idle", 0.0) / (sum(outcome.phases.values()) or 1.0) for outcome in outcomes]
    planned = idle_shares(_plan(request, placement, outcomes), len(outcomes))
    each = [
        f"rank {rank} {part:.0%} (planned {share:.0%})"
        for rank, (part, share) in enumerate(zip(parts, planned, strict=True))
    ]
    return [f"idle: {', '.join(each)} of the step; planned as if forward and backward were all of it"]


def _straggler(outcomes: list[Outcome]) -> list[str]:
    """A rank that computes much longer than another: the others wait for it in `reduce`, as for a slow network."""
    working = [
        sum(outcome.phases.get(phase, 0.0) for phase in ("forward", "backward", "update")) for outcome in outcomes
    ]
    slow, fast = max(working), min(working)
    if len(outcomes) == 1 or fast == 0 or slow < 1.3 * fast or any(outcome.updates for outcome in outcomes):
        return []
    return [
        f"rank {working.index(slow)} computes {slow / fast:.1f} times as long as rank {working.index(fast)} "
        f"({seconds_text(slow)} against {seconds_text(fast)} per step): the others wait for it, beside the network"
    ]


def samples_per_second(outcomes: list[Outcome], batch: int) -> float | None:
    """Of the steps after the warm-up: their samples over the time in which they were made, as for asynchronous
    workers. Not a batch over the median step, which leaves out what slow steps cost."""
    seconds = max((outcome.step_seconds for outcome in outcomes), key=sum)
    warm_up = len(outcomes[0].all_seconds) - len(outcomes[0].step_seconds)
    samples = _samples_of_steps(outcomes[0], batch)[warm_up : warm_up + len(seconds)]
    return sum(samples) / sum(seconds) if seconds else None


def curve_of(outcome: Outcome, batch: int) -> list[tuple[float, float, int]]:
    """(seconds since the first step began, loss and samples of the step that then ended)."""
    samples = _samples_of_steps(outcome, batch)
    return list(zip(accumulate(outcome.all_seconds), outcome.losses, samples, strict=False))


def _samples_of_steps(outcome: Outcome, batch: int) -> list[int]:
    """The last batch of an epoch may be short."""
    per_epoch = steps_per_epoch(outcome.samples, batch)
    steps = range(outcome.resumed_at, outcome.resumed_at + len(outcome.all_seconds))
    return [min(batch, outcome.samples - step % per_epoch * batch) for step in steps]
