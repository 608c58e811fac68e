"""`scalewise measure`: a grid of workload x strategy x devices x batch, timed cell by cell into a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed, UserError
from scalewise.measuring.cell import Cell
from scalewise.measuring.grid import Axes, Point, grid
from scalewise.measuring.measured import MeasureResult
from scalewise.measuring.stopping import Goal
from scalewise.results.measurement import NO_GRAPH, Measurement, Protocol, Status
from scalewise.results.store import Store
from scalewise.session.devices import settle
from scalewise.session.hosts import parse_link
from scalewise.session.placement import Placement
from scalewise.session.torchrun import under_torchrun
from scalewise.step.feed import read_load
from scalewise.step.optimizers import CAPTURABLE, check_optimizer
from scalewise.step.settings import Execution, Precision, Settings
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy
from scalewise.training.request import Request
from scalewise.verbs.sessions import Sessions
from scalewise.verbs.subject import Subject, subject_of
from scalewise.verbs.surroundings import check_same
from scalewise.verbs.sweep import Progress, Sweep
from scalewise.verbs.trial import Task

DEFAULT_STRATEGIES, DEFAULT_DEVICES, DEFAULT_BATCH = ("single", "mirrored"), (1, 2), (10, 50, 100)
PAPER_EPOCHS = 20
FINISHED = ("ok", "oom", "skipped")
"""What a resumed sweep does not measure again."""


def measure(
    workloads: str | Sequence[str],
    *,
    out: Path | str,
    strategy: str | Sequence[str] = DEFAULT_STRATEGIES,
    devices: Sequence[int] = DEFAULT_DEVICES,
    batch: Sequence[int] | None = None,
    batch_per_device: Sequence[int] | None = None,
    hosts: Sequence[int] = (1,),
    link: Sequence[str] = (),
    device_kind: str = "auto",
    slice_percent: int | None = None,
    cores_per_device: int = 1,
    timeout_seconds: float = 60.0,
    protocol: Protocol = "quick",
    interval: float = 2.0,
    budget: float = 30.0,
    budget_total: float | None = None,
    epochs: int | None = None,
    resume: bool = False,
    optimizer: str | None = None,
    precision: Precision = "fp32",
    execution: Execution = "auto",
    load: str = "auto",
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_cell: Callable[[Measurement], None] | None = None,
) -> MeasureResult:
    """Time every cell; each is in the folder `out` as soon as it is known. `batch` is global, over all devices.

    >>> print(scalewise.measure("linear", strategy=["single", "mirrored"], devices=[1, 2], batch=[10, 50], out="sweep"))
    """
    _check(protocol, interval, budget, budget_total, epochs, link)
    if batch is not None and batch_per_device is not None:
        raise UserError("--batch and --batch-per-device exclude each other; give one")
    axes = Axes(
        [workloads] if isinstance(workloads, str) else list(workloads),
        [strategy_of(text) for text in ([strategy] if isinstance(strategy, str) else strategy)],
        devices,
        next((each for each in (batch_per_device, batch) if each is not None), DEFAULT_BATCH),
        batch_per_device is not None,
        hosts,
        link,
    )
    kind = _settled_kind(device_kind, axes)
    placement = partial(
        Placement,
        device_kind=kind,
        slice_percent=slice_percent or (100 // max(devices) if kind == "slice" else None),
        cores_per_device=cores_per_device,
        timeout_seconds=timeout_seconds,
    )
    settings = Settings(1, PAPER_EPOCHS if epochs is None else epochs, None, optimizer, precision=precision)
    settings = replace(settings, execution=execution, load=load)
    settings.check()
    if optimizer is not None:
        check_optimizer(optimizer)
    read_load(load)  # refuses what is no way to load
    request = partial(
        Request, data=DataRequest(Path(data) if data else None, samples), input_shape=input_shape, classes=classes
    )
    conditions = {
        "load": load,
        "cores_per_device": cores_per_device,
        "slice_percent": placement().slice_percent,
        "input": input_shape,
        "classes": classes,
        "epochs": settings.epochs if protocol == "paper" else None,
    }
    with Store(out) as store:
        if store.measurements and not resume:
            raise UserError(
                f"{out} already holds {len(store.measurements)} measurements; go on with them with --resume, or name "
                "another folder with --out"
            )
        subjects = {
            name: _subject(store, name, request(name, Single(), settings), conditions, protocol)
            for name in dict.fromkeys(axes.workloads)
        }
        tasks = [
            _task(point, *subjects[point.workload], protocol, settings, request, placement) for point in grid(axes)
        ]
        known = {each.identity: each for each in store.measurements if each.status in FINISHED}
        left = [task for task in tasks if _known(task.cell, known, execution) is None]
        with Sessions() as sessions:
            sweep = Sweep(left, store, sessions, Goal(interval, budget), budget_total, on_progress, on_cell)
            try:
                sweep.go()
            except KeyboardInterrupt:
                done = len(tasks) - len(left) + sweep.done
                again = "the same command" if resume else "the same command and --resume"
                raise RunFailed(f"interrupted; {done} of {len(tasks)} cells are in {out}; go on with {again}") from None
        found = {each.identity: each for each in store.measurements}
    measurements = [each for task in tasks if (each := _known(task.cell, found, execution))]
    return MeasureResult(Path(out), measurements, len(tasks) - len(left), sweep.not_begun)


def _check(
    protocol: str,
    interval: float,
    budget: float,
    budget_total: float | None,
    epochs: int | None,
    links: Sequence[str],
) -> None:
    if protocol not in ("quick", "paper"):
        raise UserError(f"unknown protocol '{protocol}'; valid: quick, paper")
    for flag, value in (("--interval", interval), ("--budget", budget), ("--budget-total", budget_total)):
        if value is not None and not value > 0:
            raise UserError(f"{flag} is {value:g}; it must be above 0")
    if epochs is not None and protocol == "quick":
        raise UserError(f"--epochs {epochs} is for --protocol paper; quick stops by --interval and --budget")
    if epochs is not None and epochs < 2:
        raise UserError(f"--epochs is {epochs}; it must be at least 2, because the first is dropped")
    for each in links:
        parse_link(each)
    if under_torchrun():
        raise UserError("measure starts its own ranks and cannot under torchrun; leave torchrun out")


def _settled_kind(device_kind: str, axes: Axes) -> str:
    """'auto' is decided once, for the most devices: cells of one sweep are to be compared."""
    Placement(device_kind=device_kind)  # refuses what is no kind
    if device_kind != "auto":
        return device_kind
    return "cuda" if torch.cuda.device_count() >= max(axes.devices) and max(axes.hosts) == 1 else "cpu"


def _subject(
    store: Store, name: str, asked: Request, conditions: dict[str, Any], protocol: Protocol
) -> tuple[Subject, str]:
    """With the id of its environment, which is refused where it is not that of the cells before."""
    subject = subject_of(name, asked, conditions)
    known = Store.environments(store.folder)
    for before in store.measurements:
        if before.workload == name and before.protocol == protocol:
            check_same(store.folder, known[before.environment], subject.environment)
    return subject, store.add_environment(subject.environment)


def _task(
    point: Point,
    subject: Subject,
    environment: str,
    protocol: Protocol,
    settings: Settings,
    request: Callable[..., Request],
    placement: Callable[..., Placement],
) -> Task:
    own = replace(settings, batch=point.batch)
    kind = placement().device_kind
    cell = Cell(
        point.workload,
        point.strategy,
        point.devices,
        kind,
        point.hosts,
        point.link,
        point.batch,
        settings.precision,
        subject.optimizer,
        protocol,
        expected_execution(point.strategy, kind, subject.optimizer, settings),
    )

    def asked(steps: int | None) -> Request:
        return request(point.workload, point.strategy, own if steps is None else replace(own, epochs=None, steps=steps))

    if trouble := subject.trouble:
        status: Status = "oom" if trouble.kind == "oom" else "failed"
        return Task(cell, placement(), asked, subject.samples, environment, trouble.sentence, status)
    try:
        own.check_fits(subject.samples, subject.source)
        place = placement(
            point.devices, hosts=point.hosts, link=point.link, servers=getattr(point.strategy, "servers", 0)
        )
        settle(place)
    except UserError as error:
        return Task(cell, placement(), asked, subject.samples, environment, str(error))
    return Task(cell, place, asked, subject.samples, environment)


def expected_execution(strategy: Strategy, device_kind: str, optimizer: str, settings: Settings) -> str:
    """What 'auto' will come to, as far as it can be told before the data is on the device."""
    if settings.execution != "auto":
        return settings.execution
    captured = (
        isinstance(strategy, Single)
        and device_kind in ("cuda", "slice")
        and optimizer in CAPTURABLE | {"sgd", "momentum"}
        and settings.load in ("auto", "device")
    )
    return "graph" if captured else "eager"


def _known(cell: Cell, measurements: dict[Any, Measurement], asked: Execution) -> Measurement | None:
    """The cell as it was measured: where 'auto' found no graph to be possible, as an eager one."""
    found = measurements.get(cell.identity)
    if found is None and asked == "auto" and cell.execution == "graph":
        found = measurements.get(replace(cell, execution="eager").identity)
        return found if found and NO_GRAPH in found.flags else None
    return found
