"""What ranks bring back, put together into one run's figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from scalewise.prediction.held import Run
from scalewise.prediction.holdings import held_by
from scalewise.prediction.memory import peak_memory
from scalewise.results.train import BytesPerStep, MemoryPerDevice
from scalewise.results.units import seconds_text
from scalewise.session.cores import allowed_cores
from scalewise.session.placement import Placement
from scalewise.session.torchrun import under_torchrun
from scalewise.strategies.layers import Layers
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.strategy import Backend
from scalewise.timeline import Timeline
from scalewise.training.loop import Outcome
from scalewise.training.request import Request


def timeline_of(outcomes: list[Outcome]) -> Timeline:
    """All ranks' spans, counted from the first one's start."""
    spans = [span for outcome in outcomes for span in outcome.spans]
    origin = min((span.start for span in spans), default=0.0)
    return Timeline(tuple(replace(span, start=span.start - origin) for span in spans))


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
    backend: Backend = "nccl" if placement.device_kind == "cuda" else "gloo"
    footprint = outcomes[0].footprint
    assert footprint is not None
    plan = request.strategy.plan(footprint, placement.devices, request.settings.batch, backend)
    traced = all(outcome.traffic.steps for outcome in outcomes)
    if not plan.bytes_per_step:
        return BytesPerStep(0, 0, 0)
    if copied := [outcome.copied for outcome in outcomes if outcome.copied]:
        # All of them go through the one host memory.
        counted = round(sum(each.per_step for each in copied))
        return BytesPerStep(plan.bytes_per_step, counted, counted, "counted copies")
    if backend == "nccl" or not traced:
        return BytesPerStep(plan.bytes_per_step, None, plan.busiest_bytes)
    sent = sum(outcome.traffic.sent_per_step for outcome in outcomes)
    through = [outcome.traffic.sent_per_step + outcome.traffic.received_per_step for outcome in outcomes]
    # What a server sends and receives is counted at the workers' end of the same connections.
    for server in {number for outcome in outcomes for number in outcome.traffic.by_server}:
        shares = [outcome.traffic.with_server_per_step(server) for outcome in outcomes]
        sent += sum(received for _, received in shares)
        through.append(sum(sent + received for sent, received in shares))
    return BytesPerStep(plan.bytes_per_step, round(sent), round(max(through)))


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
    measured = [outcome.peak_memory_bytes for outcome in outcomes]
    most = max(planned, key=lambda memory: memory.total, default=None)
    return MemoryPerDevice(
        most.total if most else None,
        max((each for each in measured if each is not None), default=None),
        most.parts if most else {},
        [memory.total for memory in planned],
        measured,
        "cuda allocator" if on_gpu else "cpu allocator",
    )


def notes_on(request: Request, placement: Placement, outcomes: list[Outcome]) -> list[str]:
    outcome = outcomes[0]
    notes = []
    if outcome.resumed_at:
        notes.append(f"resumed at step {outcome.resumed_at}, now at {_reached(outcomes, placement.devices)}")
    if outcome.source.startswith("synthetic"):
        notes.append(f"trained on {outcome.source}; fetch the study's recordings with: scalewise data speech")
    if not request.strategy.exact:
        notes.append(f"{request.strategy.name} with these options is not exact: its weights differ from one device's")
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
    return notes + _straggler(outcomes) + _idling(request, outcomes)


def _reached(outcomes: list[Outcome], workers: int) -> int:
    """The step that the run ended with; asynchronous workers count updates, of which each batch takes one by each."""
    tickets = [update.ticket for outcome in outcomes for update in outcome.updates]
    return max(tickets) // workers + 1 if tickets else outcomes[0].resumed_at + outcomes[0].steps


def _idling(request: Request, outcomes: list[Outcome]) -> list[str]:
    """Devices that wait for each other by design, each its part of the step."""
    if not isinstance(request.strategy, (Layers, Pipeline)) or len(outcomes) == 1:
        return []
    parts = [outcome.phases.get("idle", 0.0) / (sum(outcome.phases.values()) or 1.0) for outcome in outcomes]
    return [f"idle: {', '.join(f'rank {rank} {part:.0%}' for rank, part in enumerate(parts))} of the step"]


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


def curve_of(outcome: Outcome, batch: int) -> list[tuple[float, float, int]]:
    """(seconds since the first step began, loss and samples of the step that then ended)."""
    return [
        (seconds, loss, batch) for seconds, loss in zip(accumulate(outcome.all_seconds), outcome.losses, strict=False)
    ]
