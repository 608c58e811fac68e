"""One device timed on one workload, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalewise.engines.engine import Place
from scalewise.results.profile import StepCost
from scalewise.results.statistics import interval_of
from scalewise.session.inprocess import InProcess, LocalWorker
from scalewise.step.ready import Watched
from scalewise.step.settings import Settings
from scalewise.strategies.single import Single
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.workloads.workload import Workload

FIRST_STEPS, MOST_STEPS = 4, 400
"""One of the first warms up."""
SECONDS_PER_BATCH = 2.0
PROBE = 2
"""Samples in the batch that tells how long others would take; batch norm refuses a single one."""


@dataclass(frozen=True)
class Profiler:
    """`workload` has its data at hand; `settings` are of any batch."""

    session: InProcess
    workload: Workload
    settings: Settings

    def cost(self, size: int, *, roughly: bool = False) -> tuple[StepCost, Outcome]:
        """A few watched steps say how long one takes and when gradients are ready; then as many as the time allows,
        unless those few took as long already."""
        [(ready, first)] = self.session.run(_watch, self._request(self.workload, size, FIRST_STEPS, eager=True))
        step = interval_of(first.step_seconds).median
        fitting = min(int(SECONDS_PER_BATCH / max(step, 1e-6)), MOST_STEPS)
        if roughly or (fitting < FIRST_STEPS and not self._may_capture):
            return _cost(size, first, ready), first
        steps = max(fitting, 3 * FIRST_STEPS) if self._may_capture else fitting
        [outcome] = self.session.run(_time, self._request(self.workload, size, steps))
        return _cost(size, outcome, ready), outcome

    @property
    def _may_capture(self) -> bool:
        return self.session.device.type == "cuda" and self.settings.execution != "eager"

    def _request(self, workload: Workload, size: int, steps: int, *, eager: bool = False) -> Request:
        settings = replace(self.settings, batch=size, epochs=None, steps=steps)
        return Request(workload, Single(), replace(settings, execution="eager") if eager else settings)


def affordable(known: StepCost, seconds: float) -> int:
    """The largest batch whose first steps fit the time, given another's: at most in proportion."""
    return int(seconds / FIRST_STEPS / (known.seconds / known.batch))


def spent(known: Sequence[StepCost]) -> float:
    """Seconds that these took at the least: what a question may take is not to be had once more by asking again."""
    return FIRST_STEPS * sum(step.seconds for step in known)


def _watch(worker: LocalWorker, request: Request) -> tuple[tuple[float, ...], Outcome]:
    watched = Watched(request.resolved(), worker.device)
    outcome = _time(worker, replace(request, workload=watched.workload))
    return watched.ready(), outcome


def _time(worker: LocalWorker, request: Request) -> Outcome:
    place = Place(worker.rank, worker.world, worker.device)
    return train_on(place, request, worker.report, evaluate=False)


def _cost(size: int, outcome: Outcome, ready: tuple[float, ...]) -> StepCost:
    """The median step, shared out as the phases were."""
    step = interval_of(outcome.step_seconds).median
    scale = step / sum(outcome.phases.values())
    seconds = {phase: seconds * scale for phase, seconds in outcome.phases.items()}
    return StepCost(
        batch=size,
        forward=seconds["forward"] + seconds["loss"],
        backward=seconds["backward"],
        update=seconds["update"],
        load=seconds["load"],
        ready=ready,
        step_seconds=step,
        peak_memory_bytes=outcome.peak_memory_bytes,
    )
