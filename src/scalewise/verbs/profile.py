"""`scalewise profile`: what one device here costs on a workload, batch by batch."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy
import torch

from scalewise import __version__
from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.results.profile import Profile, ProfileDocument, StepCost
from scalewise.session.hardware import device_name
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.worker import Worker
from scalewise.step.settings import Execution, Precision, Settings
from scalewise.training.outcome import Outcome
from scalewise.verbs.describe import Description, describe
from scalewise.verbs.outline import as_data, layer_costs
from scalewise.verbs.profile_cache import Cached
from scalewise.verbs.profiler import PROBE, Profiler, affordable, spent
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload


def profile(
    workload: str | Workload,
    *,
    batch: Sequence[int] = (10, 20, 50, 100),
    device_kind: str = "auto",
    slice_percent: int | None = None,
    precision: Precision = "fp32",
    execution: Execution = "auto",
    load: str = "auto",
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    seconds: float | None = None,
    cached: bool = False,
    on_batch: Callable[[StepCost], None] | None = None,
) -> Profile:
    """Time load, forward, backward and update on one device at each batch, and when gradients are ready.

    The device is a core, a GPU, or a share of one: `device_kind="slice", slice_percent=25`.

    Within about `seconds`, batches that would take longer, or than there are samples for, are left out. `cached`: what
    was timed before with the same workload, device and versions is not timed again.

    >>> print(scalewise.profile("linear", batch=[10, 20]))
    """
    sizes = sorted(set(batch))
    if not sizes:
        raise UserError("--batch is empty; give one or more sizes, as in --batch 10,20,50")
    settings = Settings(sizes[0], None, 1, precision=precision, execution=execution, load=load)
    settings.check()
    placement = Placement(1, device_kind, slice_percent=slice_percent)
    if device_kind == "slice":
        asked = {
            "batch": sizes,
            "precision": precision,
            "execution": execution,
            "load": load,
            "data": data,
            "samples": samples,
            "input_shape": input_shape,
            "classes": classes,
            "seconds": seconds,
            "cached": cached,
        }
        return _of_slice(placement, workload, asked, on_batch)
    found = resolve(workload, input_shape, classes) if isinstance(workload, str) else workload
    described = describe(found)
    with InProcess(placement) as session:
        kept = Cached(
            workload if isinstance(workload, str) else None,
            described,
            {
                "device": device_name(session.device),
                "precision": precision,
                "execution": execution if session.device.type == "cuda" else "eager",
                "load": load,
                "data": str(data),
                "samples": samples,
                "input": input_shape,
                "classes": classes,
                "versions": _versions(),
            },
        )
        before = kept.read() if cached else None
        known = list(before.steps) if before else []
        if before and not [size for size in _missing(sizes, known) if _affordable(known, seconds, size)]:
            return Profile(before, kept.note(before))
        loaded = found.data(DataRequest(Path(data) if data else None, samples))
        if seconds is None:
            replace(settings, batch=sizes[-1]).check_fits(len(loaded), loaded.source)
        sizes = [size for size in sizes if size <= len(loaded)] or [len(loaded)]
        profiler = Profiler(session, replace(found, data=lambda _: loaded), settings)
        outcomes: list[Outcome] = []
        for cost, outcome in _costs(profiler, sizes, tuple(known), seconds):
            outcomes.append(outcome)
            known.append(cost)
            if on_batch:
                on_batch(cost)
        if before and not outcomes:
            return Profile(before, kept.note(before))
        document = _document(described, device_name(session.device), outcomes[-1], known, precision)
    kept.write(document)
    return Profile(document)


def _of_slice(
    placement: Placement,
    workload: str | Workload,
    asked: dict[str, Any],
    on_batch: Callable[[StepCost], None] | None,
) -> Profile:
    """In a process of its own, which has its share of the GPU from birth. Its siblings are not there."""
    if not isinstance(workload, str):
        raise UserError(f"a slice has a process of its own; name '{workload.name}' as FILE.py:FUNCTION")
    with Session(placement) as session:
        [made] = session.run(_profile, workload, asked, on_report=lambda _, cost: on_batch(cost) if on_batch else None)
    return Profile(*made)


def _profile(worker: Worker, workload: str | Workload, asked: dict[str, Any]) -> tuple[ProfileDocument, str]:
    made = profile(workload, device_kind="cuda", on_batch=worker.report, **asked)
    return made.document, made.note


def _missing(sizes: Sequence[int], known: Sequence[StepCost]) -> list[int]:
    return [size for size in sizes if size not in [step.batch for step in known]]


def _affordable(known: Sequence[StepCost], seconds: float | None, size: int) -> bool:
    if seconds is None or not known:
        return True
    return size <= affordable(max(known, key=lambda step: step.batch), seconds - spent(known))


def _costs(
    profiler: Profiler, sizes: Sequence[int], known: Sequence[StepCost], seconds: float | None
) -> Iterator[tuple[StepCost, Outcome]]:
    """Those that are missing and fit the time; where none does, one that does."""
    missing = _missing(sizes, known)
    if seconds is None:
        for size in missing:
            yield profiler.cost(size)
        return
    until = perf_counter() + seconds - spent(known)
    latest, limited, timed = max(known, key=lambda step: step.batch, default=None), True, bool(known)
    if latest is None:
        latest, outcome = profiler.cost(min(PROBE, sizes[0]), roughly=True)
        limited = affordable(latest, until - perf_counter()) < sizes[-1]
        if limited:
            yield latest, outcome
            missing = _missing(missing, [latest])
    for size in missing:
        if not limited or size <= affordable(latest, until - perf_counter()):
            latest, outcome = profiler.cost(size)
            timed = True
            yield latest, outcome
    most = affordable(latest, until - perf_counter())
    if not timed and most > 2 * PROBE:
        yield profiler.cost(2 ** (most.bit_length() - 1))


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
        footprint=as_data(outcome.footprint),
        layers=layer_costs(described),
        steps=tuple(sorted(costs, key=lambda step: step.batch)),
        precision=precision,
        data=outcome.source,
        versions=_versions(),
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
