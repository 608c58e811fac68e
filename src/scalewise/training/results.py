"""Request of a run, and its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from time import perf_counter

from scalewise.core.errors import UserError
from scalewise.core.timeline import Span, Timeline
from scalewise.core.training_options import Settings, steps_per_epoch
from scalewise.core.units import seconds_text
from scalewise.data.dataset import DataRequest
from scalewise.formats.train_result import BytesPerStep, Checkpoints, MemoryPerDevice
from scalewise.hardware.collectives import Backend
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.predict.memory import peak_memory
from scalewise.runtime.byte_counters import StepTraffic
from scalewise.runtime.device_memory import FEWEST_STEPS, memory_limit_bytes
from scalewise.runtime.host_offload import Copied
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Footprint, Plan
from scalewise.strategies.rank_memory import LayerMemory, TrainingRun
from scalewise.strategies.registry import strategy_text
from scalewise.strategies.stage_plan import idle_shares


@dataclass(frozen=True)
class Request:
    """One training run, as it is sent to every rank.

    Every rank resolves the workload's name itself. A Workload object cannot be sent to other processes.
    """

    workload: str | Workload
    strategy: Strategy
    settings: Settings
    data: DataRequest = field(default_factory=DataRequest)
    input_shape: str | None = None
    classes: int | None = None

    def resolved(self) -> Workload:
        workload = self.workload
        if not isinstance(workload, Workload):
            workload = resolve(workload, self.input_shape, self.classes)
        if workload.not_trainable:
            raise UserError(workload.not_trainable)
        return workload


@dataclass(frozen=True)
class Report:
    """Progress of a running rank."""

    steps_done: int
    steps: int
    epoch: int
    loss: float | None = None


@dataclass(frozen=True)
class Update:
    """One update by one asynchronous worker; times are from the machine's monotonic clock."""

    ticket: int
    epoch: int
    samples: int
    loss: float
    started: float
    ended: float


@dataclass
class Outcome:
    """Result of one rank."""

    source: str
    samples: int
    parameters: int
    execution: str
    load: str
    steps: int
    why_streamed: str = ""
    compile_seconds: float = 0.0
    """Seconds of compilation and of capturing CUDA graphs."""
    execution_notes: list[str] = field(default_factory=list)
    """What the execution options did: chosen convolutions, reasons of a fallback."""
    loss: float = math.nan
    losses: list[float] = field(default_factory=list)
    """Loss of every step, before its update."""
    accuracy: float | None = None
    epoch_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """Seconds of every step after the warm-up."""
    all_seconds: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    traffic: StepTraffic = field(default_factory=StepTraffic)
    copied: Copied | None = None
    """Copies between host memory and the device, for strategies that count them."""
    footprint: Footprint | None = None
    layers: tuple[LayerMemory, ...] = ()
    """Memory of every layer for the samples that a device processes at once; empty if unknown."""
    interrupted: bool = False
    """Whether the run was stopped by a signal before its last step."""
    resumed_at: int = 0
    run_seconds: float = 0.0
    """Seconds from the first step to the last, with checkpoints."""
    checkpoints: int = 0
    """Number of checkpoints that the run saved."""
    checkpoint_seconds: float = 0.0
    """Seconds in which this rank gathered and saved checkpoints."""
    last_step: int = 0
    """Number of finished steps, including those before a resumed run."""
    updates: list[Update] = field(default_factory=list)
    """Updates by an asynchronous worker."""
    acknowledged: int = 0
    """Updates of an asynchronous worker that the servers confirmed."""
    worker: int = 0
    """Number of an asynchronous worker. Outcomes of workers that died are missing."""


SECONDS_BETWEEN_REPORTS = 0.2


def at_intervals(report: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `report` at most once per SECONDS_BETWEEN_REPORTS."""
    reported_at = perf_counter()

    def report_if_due() -> None:
        nonlocal reported_at
        if (now := perf_counter()) - reported_at > SECONDS_BETWEEN_REPORTS:
            report()
            reported_at = now

    return report_if_due


def timeline_of(outcomes: list[Outcome]) -> Timeline:
    """Timeline of all ranks, starting at 0.

    Clocks of other hosts start when those hosts boot: ranks whose spans never overlap with the first rank's are moved
    to start together with it.
    """
    ranks = [outcome.spans for outcome in outcomes if outcome.spans]
    if not ranks:
        return Timeline(())
    first_start, first_end = _extent(ranks[0])
    aligned = []
    for spans in ranks:
        start, end = _extent(spans)
        overlaps = start < first_end and end > first_start
        aligned.append(spans if overlaps else _shifted(spans, first_start - start))
    origin = min(span.start for spans in aligned for span in spans)
    return Timeline(tuple(span for spans in aligned for span in _shifted(spans, -origin)))


def _extent(spans: list[Span]) -> tuple[float, float]:
    return min(span.start for span in spans), max(span.start + span.seconds for span in spans)


def _shifted(spans: list[Span], seconds: float) -> list[Span]:
    return [replace(span, start=span.start + seconds) for span in spans]


def slowest(ranks: list[list[float]]) -> list[float]:
    """Seconds of the slowest rank at every step or epoch."""
    return [max(seconds) for seconds in zip(*ranks, strict=False)]


def pace_of(ranks: list[dict[str, float]], alone: float | None = None) -> int:
    """Rank whose phases are reported: rank 0 unless another rank's steps take over 5 % longer.

    Asynchronous workers do not wait for each other. With `alone`, the median step of all workers, return the worker
    whose steps come closest to it.
    """
    totals = [sum(phases.values()) for phases in ranks]
    if alone is not None:
        return totals.index(min(filter(None, totals), key=lambda seconds: abs(seconds - alone), default=0.0))
    return 0 if totals[0] >= 0.95 * max(totals) else totals.index(max(totals))


def bytes_per_step(request: Request, placement: Placement, outcomes: list[Outcome]) -> BytesPerStep:
    """Planned and counted bytes of one step.

    A step of asynchronous workers is one update by one of them, while the plan covers one update by each.
    """
    plan = _plan(request, placement, outcomes)
    updates = sum(len(outcome.updates) for outcome in outcomes)
    steps = placement.devices if updates else 1
    planned, busiest = plan.bytes_per_step // steps, plan.busiest_bytes // steps
    if not planned:
        return BytesPerStep(0, 0, 0)
    if copied := [outcome.copied for outcome in outcomes if outcome.copied]:
        # The copies of all devices go through the same host memory.
        counted = round(sum(copies.per_step for copies in copied))
        return BytesPerStep(planned, counted, counted, "counted copies")
    # An asynchronous worker that started late may have made no update.
    traffics = [outcome.traffic for outcome in outcomes if outcome.updates or not updates]
    if _backend(placement) == "nccl" or not all(traffic.steps for traffic in traffics):
        return BytesPerStep(planned, None, busiest)
    shares = [traffic.steps / updates if updates else 1.0 for traffic in traffics]
    sent = sum(share * traffic.sent_per_step for share, traffic in zip(shares, traffics, strict=True))
    transferred = [
        share * (traffic.sent_per_step + traffic.received_per_step)
        for share, traffic in zip(shares, traffics, strict=True)
    ]
    # Traffic of a server is counted at the workers' end of its connections.
    for server in {number for traffic in traffics for number in traffic.by_server}:
        flows = [
            (share, *traffic.with_server_per_step(server)) for share, traffic in zip(shares, traffics, strict=True)
        ]
        sent += sum(share * received for share, _, received in flows)
        transferred.append(sum(share * (sent + received) for share, sent, received in flows))
    return BytesPerStep(planned, round(sent), round(max(transferred)))


def _plan(request: Request, placement: Placement, outcomes: list[Outcome]) -> Plan:
    footprint = outcomes[0].footprint
    assert footprint is not None
    return request.strategy.plan(footprint, placement.devices, request.settings.batch, _backend(placement))


def _backend(placement: Placement) -> Backend:
    return "nccl" if placement.device_kind == "cuda" else "gloo"


def strategy_with_microbatches(strategy: Strategy, microbatches: int | None = None) -> str:
    """Strategy as written on the command line, plus the number of micro-batches if it chose that itself."""
    text = strategy_text(strategy)
    if strategy.plans_microbatches and microbatches is not None:
        text += f" with {microbatches} micro-batch{'es' if microbatches > 1 else ''}"
    return text


def memory_of(request: Request, placement: Placement, outcomes: list[Outcome]) -> MemoryPerDevice:
    """Planned and measured peak memory of every rank."""
    first, settings = outcomes[0], request.settings
    on_gpu = placement.device_kind != "cpu"
    assert first.footprint is not None
    sample_bytes = first.footprint.input_bytes + first.footprint.target_bytes
    run = TrainingRun(
        placement.devices,
        settings.batch,
        first.footprint,
        on_gpu,
        through_host=placement.device_kind == "slice",
        accumulate=settings.accumulate,
        resident_bytes=first.samples * sample_bytes if on_gpu and first.load == "device" else 0,
    )
    optimizer = settings.optimizer or request.resolved().optimizer
    limit = memory_limit_bytes() if on_gpu else None
    planned = [
        peak_memory(request.strategy.rank_memory(rank, run, first.layers), optimizer, limit)
        for rank in range(placement.devices if first.layers else 0)
    ]
    measured = _peak_bytes_by_rank(outcomes, placement.devices)
    fullest = max(planned, key=lambda memory: memory.total, default=None)
    return MemoryPerDevice(
        fullest.total if fullest else None,
        max((peak_bytes for peak_bytes in measured if peak_bytes is not None), default=None),
        fullest.parts if fullest else {},
        [memory.total for memory in planned],
        measured,
        "cuda allocator" if on_gpu else "host allocator",
        "" if any(measured) else _why_not_measured(request, first),
    )


def _peak_bytes_by_rank(outcomes: list[Outcome], devices: int) -> list[int | None]:
    """Measured peak memory by rank; None for asynchronous workers that died, which return no outcome."""
    if not any(outcome.updates for outcome in outcomes):
        return [outcome.peak_memory_bytes for outcome in outcomes]
    peaks = {outcome.worker: outcome.peak_memory_bytes for outcome in outcomes}
    return [peaks.get(worker) for worker in range(devices)]


def _why_not_measured(request: Request, outcome: Outcome) -> str:
    if request.strategy.asynchronous:
        return "not supported for asynchronous workers on a CPU"
    if request.settings.total_steps(outcome.samples) < FEWEST_STEPS:
        return f"the run has fewer than {FEWEST_STEPS} steps"
    return "peak memory on the CPU is measured on Linux with glibc 2.33 or later, and without ulimit -v"


def notes_on(request: Request, placement: Placement, outcomes: list[Outcome]) -> list[str]:
    outcome = outcomes[0]
    notes = []
    if outcome.resumed_at:
        notes.append(f"resumed at step {outcome.resumed_at}, now at {_last_step(outcomes, placement.devices)}")
    if outcome.source.startswith("synthetic"):
        notes.append(f"trained on {outcome.source}; download the study's recordings with: scalewise data speech")
    notes += dict.fromkeys(outcome.why_streamed for outcome in outcomes if outcome.why_streamed)
    notes += dict.fromkeys(note for outcome in outcomes for note in outcome.execution_notes)
    if not request.strategy.exact:
        notes.append(
            f"{request.strategy.name} with these options is not exact: its weights differ from those of one device"
        )
    footprint = outcome.footprint
    norm_group = request.strategy.seen_at_once(placement.devices, footprint.microbatches if footprint else None)
    if norm_group and footprint and footprint.norms_batches:
        notes.append(f"batch norm sees {norm_group} at a time: weights differ slightly from those of one device")
    cores = len(allowed_cores())
    if placement.oversubscribed and not under_torchrun():  # under torchrun a rank knows only its own cores
        notes.append(
            f"oversubscribed: {placement.devices} cpu devices share {cores} core{'s' if cores > 1 else ''}, so the "
            "times are not those of real devices"
        )
    if outcome.copied and placement.device_kind == "cpu":
        notes.append("cpu devices copy with the cores that compute, so copies do not overlap with computing")
    if outcome.copied and request.settings.precision == "bf16":
        notes.append(
            "bf16 copies of the weights stay on the device from forward to backward, so half of the weights must fit; "
            "backward fetches no weights"
        )
    if outcome.copied and request.settings.accumulate > 1:
        notes.append(
            "weights are fetched and gradients copied to the host once per part of a batch; the plan covers one part"
        )
    if request.strategy.gathers_weights and request.settings.accumulate > 1:
        notes.append("weights are gathered and gradients reduced once per part of a batch; the plan covers one part")
    for rank, share in placement.slow.items():
        notes.append(f"rank {rank} was limited to {share:.0%} of its core")
    return notes + straggler_notes(request.strategy, outcomes) + _idle_note(request, placement, outcomes)


def _last_step(outcomes: list[Outcome], workers: int) -> int:
    """Number of finished steps at the end of the run. For asynchronous workers a step is one ticket per worker."""
    tickets = [update.ticket for outcome in outcomes for update in outcome.updates]
    return max(tickets) // workers + 1 if tickets else outcomes[0].resumed_at + outcomes[0].steps


def _idle_note(request: Request, placement: Placement, outcomes: list[Outcome]) -> list[str]:
    """Note on the share of the step in which each stage waits for another (the bubble)."""
    if not request.strategy.in_stages or len(outcomes) == 1:
        return []
    measured = [outcome.phases.get("idle", 0.0) / (sum(outcome.phases.values()) or 1.0) for outcome in outcomes]
    planned = idle_shares(_plan(request, placement, outcomes), len(outcomes))
    ranks = [
        f"rank {rank} {share:.0%} (planned {planned_share:.0%})"
        for rank, (share, planned_share) in enumerate(zip(measured, planned, strict=True))
    ]
    return [f"idle share of the step: {', '.join(ranks)}; the plan counts only forward and backward"]


def straggler_notes(strategy: Strategy, outcomes: list[Outcome]) -> list[str]:
    """Note on a rank that computes much longer than another, although both have the whole model.

    The others wait for it in phases such as `reduce`, which otherwise look like a slow network. Only forward and
    backward count, because some strategies update the weights on one device.
    """
    computing = [sum(outcome.phases.get(phase, 0.0) for phase in ("forward", "backward")) for outcome in outcomes]
    slow, fast = max(computing), min(computing)
    if strategy.one_model or any(outcome.updates for outcome in outcomes):
        return []
    if len(outcomes) == 1 or fast == 0 or slow < 1.3 * fast:
        return []
    return [
        f"rank {computing.index(slow)} is a straggler: it computes {slow / fast:.1f} times as long as rank "
        f"{computing.index(fast)} ({seconds_text(slow)} against {seconds_text(fast)} per step), and the others wait "
        "for it"
    ]


def samples_per_second(outcomes: list[Outcome], batch: int) -> float | None:
    """Samples per second of the steps after the warm-up: all their samples divided by all their seconds.

    Not the batch divided by the median step, because that hides the cost of slow steps.
    """
    seconds = max((outcome.step_seconds for outcome in outcomes), key=sum)
    warm_up = len(outcomes[0].all_seconds) - len(outcomes[0].step_seconds)
    samples = _samples_of_steps(outcomes[0], batch)[warm_up : warm_up + len(seconds)]
    return sum(samples) / sum(seconds) if seconds else None


def checkpoints_of(outcome: Outcome) -> Checkpoints | None:
    """Cost of checkpoints on rank 0; None where servers write them."""
    if not outcome.checkpoints or not outcome.run_seconds:
        return None
    seconds = outcome.checkpoint_seconds
    return Checkpoints(outcome.checkpoints, seconds, 100 * seconds / outcome.run_seconds)


def curve_of(outcome: Outcome, batch: int) -> list[tuple[float, float, int]]:
    """Loss curve: (seconds since the first step started, loss, samples) at the end of every step."""
    samples = _samples_of_steps(outcome, batch)
    return list(zip(accumulate(outcome.all_seconds), outcome.losses, samples, strict=False))


def _samples_of_steps(outcome: Outcome, batch: int) -> list[int]:
    """Number of samples of every step: the last batch of an epoch may be smaller."""
    per_epoch = steps_per_epoch(outcome.samples, batch)
    steps = range(outcome.resumed_at, outcome.resumed_at + len(outcome.all_seconds))
    return [min(batch, outcome.samples - step % per_epoch * batch) for step in steps]
