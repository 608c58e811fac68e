"""`scalewise profile`: time one device on a workload, batch by batch, with a cache."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy
import torch
from torch import nn

from scalewise import __version__
from scalewise.core.arguments import checked, one_or_more
from scalewise.core.errors import RunFailed, UserError
from scalewise.core.files import cache_folder, write_atomically
from scalewise.core.statistics import interval_of
from scalewise.core.timeline import shared_out
from scalewise.core.training_options import Execution, Precision, Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.formats.profile import Profile, ProfileDocument, StepCost
from scalewise.formats.tuned import source_hash
from scalewise.launch.devices import device_name
from scalewise.launch.existing_processes import InProcess, LocalWorker
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.launch.worker import Worker
from scalewise.models.describe import Description, describe
from scalewise.models.given_workload import given_workload
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.probe.untimed_profile import as_json, layer_costs, with_stages
from scalewise.runtime.clock import Watched
from scalewise.strategies.registry import REFERENCE
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request

FIRST_STEPS, MOST_STEPS = 4, 400
"""Steps of the first, short run of a batch, one of which is warm-up; most steps of the second run."""
SECONDS_PER_BATCH = 2.0
SHORTEST_STEP_SECONDS = 1e-6
"""Assumed length of a step that takes 0 seconds by the clock."""
PROBE_BATCH = 2
"""Batch size from which the time of larger batches is estimated. Batch norm refuses a batch of one."""


@dataclass(frozen=True)
class Profiler:
    """Times batches of a workload on one device. `workload` has loaded data; the batch in `settings` is not used."""

    session: InProcess
    workload: Workload
    settings: Settings

    def cost(self, size: int, *, roughly: bool = False) -> tuple[StepCost, Outcome]:
        """Time one batch size.

        A short eager run measures when gradients become ready and how long a step takes. A second run then has as many
        steps as SECONDS_PER_BATCH allows. It is left out if `roughly`, or if a step is too long.
        """
        [(ready, first)] = self.session.run(
            _time_gradients, self._request(self.workload, size, FIRST_STEPS, eager=True)
        )
        step = interval_of(first.step_seconds).median
        affordable_steps = min(int(SECONDS_PER_BATCH / max(step, SHORTEST_STEP_SECONDS)), MOST_STEPS)
        if roughly or (affordable_steps < FIRST_STEPS and not self._may_capture):
            return _cost(size, first, first.phases, ready), first
        steps = max(affordable_steps, 3 * FIRST_STEPS) if self._may_capture else affordable_steps
        [outcome] = self.session.run(_time, self._request(self.workload, size, steps))
        return _cost(size, outcome, outcome.phases or first.phases, ready), outcome

    @property
    def _may_capture(self) -> bool:
        return self.session.device.type == "cuda" and self.settings.execution != "eager"

    def _request(self, workload: Workload, size: int, steps: int, *, eager: bool = False) -> Request:
        settings = replace(self.settings, batch=size, epochs=None, steps=steps)
        return Request(workload, REFERENCE, replace(settings, execution="eager") if eager else settings)


def largest_batch_within(step: StepCost, seconds: float) -> int:
    """Largest batch whose first steps fit into `seconds`, assuming time proportional to the batch of `step`."""
    return int(seconds / FIRST_STEPS / (max(step.seconds, SHORTEST_STEP_SECONDS) / step.batch))


def seconds_spent(steps: Sequence[StepCost]) -> float:
    """Least seconds that timing these batches took. They count towards the time limit of later calls too."""
    return FIRST_STEPS * sum(step.seconds for step in steps)


def _time_gradients(worker: LocalWorker, request: Request) -> tuple[tuple[float, ...], Outcome]:
    watched = Watched(request.resolved(), worker.device)
    outcome = _time(worker, replace(request, workload=watched.workload))
    return watched.ready(), outcome


def _time(worker: LocalWorker, request: Request) -> Outcome:
    place = Place(worker.rank, worker.world, worker.device)
    return train_on(place, request, worker.report, evaluate=False)


def _cost(size: int, outcome: Outcome, phases: Mapping[str, float], ready: tuple[float, ...]) -> StepCost:
    """Cost of the median step, divided among its phases in proportion to `phases`; zeros if the step took no time."""
    step = interval_of(outcome.step_seconds).median
    seconds = defaultdict(float, shared_out(phases, step))
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


class ProfileCache:
    """Cache file of one workload on one device, named by a hash of everything that its step times depend on.

    The hash includes the layers and the source file, so that a changed model is timed again. Profiles of Workload
    objects are not cached.
    """

    def __init__(self, workload: str | None, described: Description, conditions: Mapping[str, Any]) -> None:
        self.path: Path | None = None
        if workload is not None:
            content = [workload, source_hash(workload), asdict(described), dict(conditions)]
            name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
            self.path = cache_folder() / "profiles" / f"{name}.json"

    def read(self) -> ProfileDocument | None:
        """Return the cached profile; None if there is none or it cannot be read."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            return Profile.read(self.path).document
        except UserError:
            return None

    def write(self, document: ProfileDocument) -> None:
        """Write the profile. Errors such as a full disk are ignored: the next run only profiles again."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, document.model_dump_json().encode())
        except (OSError, RunFailed):
            return

    def note(self, document: ProfileDocument) -> str:
        return f"cached since {document.measured_at} in {self.path}"


@checked
def profile(
    workload: str | Workload | nn.Module,
    *,
    batch: int | Sequence[int] = (10, 20, 50, 100),
    device_kind: str = "auto",
    slice_percent: int | None = None,
    precision: Precision = "fp32",
    execution: Execution = "auto",
    load: str = "auto",
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | tuple[int, ...] | None = None,
    classes: int | None = None,
    seconds: float | None = None,
    cached: bool = False,
    on_batch: Callable[[StepCost], None] | None = None,
) -> Profile:
    """Time load, forward, backward and update of one device at each batch, and when gradients become ready.

    Args:
        workload: As for `train`: a name, "path/to/file.py:function", an nn.Module or a `scalewise.Workload`.
        batch: One or several batches.
        device_kind: "cpu" (one core), "cuda" (a GPU), "slice" (a share of a GPU) or "auto".
        slice_percent: Percent of the GPU of a slice.
        precision: Precision of matrix multiplications.
        execution: "eager", "graph", "compile" or "auto".
        load: How samples are loaded; see `train`.
        data: Folder or file with the data.
        samples: Use at most this many samples, evenly spaced.
        input_shape: Shape of one sample without the batch. Needed for an nn.Module and for a function that returns one.
        classes: Number of classes. Needed for a function that returns an nn.Module.
        seconds: Limit of the time of profiling: batches that would take longer, or have more samples than the data,
            are left out.
        cached: Do not time batches again that were timed with the same workload, device and versions. Only workloads
            that are given by name are cached.
        on_batch: Function that is called with the cost of each batch.

    Returns:
        A `Profile`, which prints as a table. `write(path)` saves it; `advise(profile=...)` predicts from it.

    Examples:
        >>> profile = scalewise.profile("linear", batch=[10, 20], samples=100, device_kind="cpu")
        >>> [step.batch for step in profile.document.steps]
        [10, 20]
    """
    workload, shape, classes = given_workload(workload, input_shape, classes)
    sizes = sorted(set(one_or_more(batch)))
    if not sizes:
        raise UserError("--batch is empty; give one or more sizes, as in --batch 10,20,50")
    settings = Settings(sizes[0], None, 1, precision=precision, execution=execution, load=load)
    settings.check()
    placement = Placement(1, device_kind, slice_percent=slice_percent)
    if device_kind == "slice":
        arguments = {
            "batch": sizes,
            "precision": precision,
            "execution": execution,
            "load": load,
            "data": data,
            "samples": samples,
            "input_shape": shape,
            "classes": classes,
            "seconds": seconds,
            "cached": cached,
        }
        return _profile_slice(placement, workload, arguments, on_batch)
    resolved = resolve(workload, shape, classes) if isinstance(workload, str) else workload
    described = describe(resolved)
    with InProcess(placement) as session:
        cache = ProfileCache(
            workload if isinstance(workload, str) else None,
            described,
            {
                "device": device_name(session.device),
                "precision": precision,
                "execution": execution if session.device.type == "cuda" else "eager",
                "load": load,
                "data": str(data),
                "samples": samples,
                "input": shape,
                "classes": classes,
                "versions": _versions(),
            },
        )
        before = cache.read() if cached else None
        timed = list(before.steps) if before else []
        if before and not [size for size in _missing(sizes, timed) if _fits(timed, seconds, size)]:
            return Profile(before, cache.note(before))
        loaded = resolved.data(DataRequest(Path(data) if data else None, samples))
        if seconds is None:
            replace(settings, batch=sizes[-1]).check_fits(len(loaded), loaded.source)
        sizes = [size for size in sizes if size <= len(loaded)] or [len(loaded)]
        profiler = Profiler(session, replace(resolved, data=lambda _: loaded), settings)
        outcomes: list[Outcome] = []
        for cost, outcome in _time_batches(profiler, sizes, tuple(timed), seconds):
            outcomes.append(outcome)
            timed.append(cost)
            if on_batch:
                on_batch(cost)
        if before and not outcomes:
            return Profile(before, cache.note(before))
        document = _document(described, device_name(session.device), outcomes[-1], timed, precision)
    document = with_stages(document, replace(resolved, data=lambda _: loaded))
    cache.write(document)
    return Profile(document)


def _profile_slice(
    placement: Placement,
    workload: str | Workload,
    arguments: dict[str, Any],
    on_batch: Callable[[StepCost], None] | None,
) -> Profile:
    """Profile in a new process, because a slice is set up before its process uses the GPU. Other slices are idle."""
    if not isinstance(workload, str):
        raise UserError(f"a slice runs in its own process; name '{workload.name}' as FILE.py:FUNCTION")
    with Session(placement) as session:
        [result] = session.run(
            _profile_on_worker,
            workload,
            arguments,
            on_report=lambda _, cost: on_batch(cost) if on_batch else None,
        )
    return Profile(*result)


def _profile_on_worker(
    worker: Worker, workload: str | Workload, arguments: dict[str, Any]
) -> tuple[ProfileDocument, str]:
    result = profile(workload, device_kind="cuda", on_batch=worker.report, **arguments)
    return result.document, result.note


def _missing(sizes: Sequence[int], timed: Sequence[StepCost]) -> list[int]:
    """Batch sizes that are not timed yet."""
    return [size for size in sizes if size not in [step.batch for step in timed]]


def _fits(timed: Sequence[StepCost], seconds: float | None, size: int) -> bool:
    """Whether timing a batch of `size` fits the remaining time."""
    if seconds is None or not timed:
        return True
    return size <= largest_batch_within(max(timed, key=lambda step: step.batch), seconds - seconds_spent(timed))


def _time_batches(
    profiler: Profiler, sizes: Sequence[int], known: Sequence[StepCost], seconds: float | None
) -> Iterator[tuple[StepCost, Outcome]]:
    """Time the missing batch sizes that fit `seconds`; if none of them fits, time the largest that does."""
    missing = _missing(sizes, known)
    if seconds is None:
        for size in missing:
            yield profiler.cost(size)
        return
    deadline = perf_counter() + seconds - seconds_spent(known)
    latest, limited, timed = max(known, key=lambda step: step.batch, default=None), True, bool(known)
    if latest is None:
        latest, outcome = profiler.cost(min(PROBE_BATCH, sizes[0]), roughly=True)
        limited = largest_batch_within(latest, deadline - perf_counter()) < sizes[-1]
        if limited:
            yield latest, outcome
            missing = _missing(missing, [latest])
    for size in missing:
        if not limited or size <= largest_batch_within(latest, deadline - perf_counter()):
            latest, outcome = profiler.cost(size)
            timed = True
            yield latest, outcome
    largest = largest_batch_within(latest, deadline - perf_counter())
    if not timed and largest > 2 * PROBE_BATCH:
        yield profiler.cost(2 ** (largest.bit_length() - 1))


def _versions() -> dict[str, str]:
    return {
        "scalewise": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def _document(
    described: Description, device: str, outcome: Outcome, costs: Sequence[StepCost], precision: str
) -> ProfileDocument:
    assert outcome.footprint is not None
    return ProfileDocument(
        workload=described.workload,
        device=device,
        execution=outcome.execution,
        samples_per_epoch=outcome.samples,
        parameter_bytes=described.parameter_bytes,
        input_bytes=described.input_bytes,
        footprint=as_json(outcome.footprint),
        layers=layer_costs(described),
        modules=described.modules,
        module_calls=described.module_calls,
        steps=tuple(sorted(costs, key=lambda step: step.batch)),
        precision=precision,
        data=outcome.source,
        versions=_versions(),
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
