"""`scalewise measure`: time a grid of cells into a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scalewise.core.arguments import checked, one_or_more
from scalewise.core.errors import Failure, RunFailed, UserError, UsersCodeFailed
from scalewise.core.training_options import Execution, Precision, Settings
from scalewise.data.dataset import DataRequest
from scalewise.formats.store import NO_GRAPH, Environment, Measurement, Protocol, Status, Store
from scalewise.launch.devices import settle
from scalewise.launch.emulated_hosts import parse_link
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.launch.rank_failure import from_exception
from scalewise.launch.real_hosts import assign, real_hosts
from scalewise.models.catalogue import named
from scalewise.models.describe import describe
from scalewise.models.given_workload import given_workload, shape_text
from scalewise.models.workload import Workload
from scalewise.runtime.optimizers import CAPTURABLE
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import MEASURED_BY_DEFAULT, REFERENCE, strategy_of
from scalewise.sweep.environment import check_same, current_environment
from scalewise.sweep.grid import Axes, Cell, Point, grid
from scalewise.sweep.result import MeasureResult
from scalewise.sweep.stopping_rule import Goal, check_limits
from scalewise.sweep.sweep import Progress, Sweep
from scalewise.sweep.timed_cell import Task
from scalewise.training.results import Request
from scalewise.training.session_pool import Sessions


@dataclass(frozen=True)
class Subject:
    """Data and environment of one workload of the sweep."""

    samples: int
    """Samples per epoch."""
    source: str
    """Description of the data."""
    optimizer: str
    environment: Environment
    failure: Failure | None = None
    """Failure of the user's code, recorded for all cells of this workload."""


def subject_of(name: str, request: Request, conditions: Mapping[str, Any]) -> Subject:
    """Load a workload and its data; raise UserError if the name is unknown or is not a workload."""
    workload: Workload | None = None
    try:
        workload = request.resolved()
        source, samples = _data(workload, request)
    except UsersCodeFailed as error:
        if _is_unknown_module(name, error):
            raise
        # The workload's own default optimizer is unknown if the workload could not be created.
        default = workload.optimizer if workload else Workload.optimizer
        environment = current_environment("", None, conditions)
        return Subject(0, "", request.settings.optimizer or default, environment, _failure(name, error))
    environment = current_environment(source, samples, conditions)
    return Subject(samples, source, request.settings.optimizer or workload.optimizer, environment)


def _data(workload: Workload, request: Request) -> tuple[str, int]:
    try:
        data = workload.data(request.data)
        return data.source, len(data)
    except (UserError, RunFailed):
        raise
    except Exception as error:
        failure = from_exception(0, error)
        problem = failure.cause if failure.location else f"'{workload.name}': {failure.cause}"
        raise UsersCodeFailed(problem, failure.location) from error


def _is_unknown_module(name: str, error: UsersCodeFailed) -> bool:
    """Return whether the workload's module does not exist, rather than failing while it is imported."""
    cause, module = error.__cause__, name.rpartition(":")[0]
    return isinstance(cause, ModuleNotFoundError) and f"{module}.".startswith(f"{cause.name}.")


def _failure(name: str, error: UsersCodeFailed) -> Failure:
    failure = from_exception(0, error, name)
    return replace(failure, before_first_step=True, remedies=()) if failure.kind == "oom" else failure


DEFAULT_DEVICES, DEFAULT_BATCH = (1, 2), (10, 50, 100)
PAPER_EPOCHS = 20
FINISHED = ("ok", "oom", "skipped")
"""Statuses of cells that a resumed sweep does not measure again."""


@checked
def measure(
    workloads: str | Workload | nn.Module | Sequence[str | Workload | nn.Module],
    *,
    out: Path | str,
    strategy: str | Sequence[str] = MEASURED_BY_DEFAULT,
    devices: int | Sequence[int] = DEFAULT_DEVICES,
    batch: int | Sequence[int] | None = None,
    batch_per_device: int | Sequence[int] | None = None,
    hosts: int | Sequence[int] = (1,),
    link: str | Sequence[str] = (),
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
    input_shape: str | tuple[int, ...] | None = None,
    classes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_cell: Callable[[Measurement], None] | None = None,
) -> MeasureResult:
    """Time every cell of a grid and write each measurement to the folder `out` as soon as it is complete.

    The grid has a cell per workload, strategy, number of devices, batch, number of hosts and link.

    Args:
        workloads: One or several workloads, each as for `train`.
        out: Folder for `measurements.jsonl` and `environment.json`; `scalewise.report` draws its figures.
        strategy: One or several strategies.
        devices: One or several numbers of devices.
        batch: One or several global batches (over all devices); by default 10, 50 and 100.
        batch_per_device: One or several batches per device, instead of `batch`.
        hosts: One or several numbers of emulated hosts (needs root).
        link: One or several bandwidths between emulated hosts, such as "1gbit".
        device_kind: "cpu" (one core per device), "cuda" (one GPU per device), "slice" (devices share one GPU) or
            "auto".
        slice_percent: Percent of the GPU per slice; by default 100 / the largest number of devices.
        cores_per_device: Cores and threads per cpu device.
        timeout_seconds: Seconds after which a hung rank fails its cell.
        protocol: "quick" times steps until `interval` or `budget` is reached. "paper" trains 20 epochs and leaves out
            the first, as the 2020 study did.
        interval: Width of the 95 % interval, in percent, at which a cell is timed well enough.
        budget: Seconds per cell of the quick protocol.
        budget_total: Seconds of the whole sweep; cells that were not begun are left for `resume`.
        epochs: Epochs per cell of the paper protocol.
        resume: Continue in a folder that has measurements already.
        optimizer: Optimizer; by default the workload's.
        precision: Precision of matrix multiplications.
        execution: "eager", "graph", "compile" or "auto".
        load: How samples are loaded; see `train`.
        data: Folder or file with the data.
        samples: Use at most this many samples, evenly spaced.
        input_shape: Shape of one sample without the batch, (3, 224, 224) or "3x224x224". Needed for an nn.Module and
            for a function that returns one.
        classes: Number of classes. Needed for a function that returns an nn.Module.
        on_progress: Function that is called with the progress of the sweep.
        on_cell: Function that is called with each complete measurement.

    Returns:
        A `MeasureResult`, which prints as a table. `measurements` has the cells, also those that ran out of memory or
        were skipped; `to_dataframe()` has one row per cell.

    Raises:
        UserError: An argument is invalid.
        RunFailed: The sweep was interrupted; measured cells are kept.

    Examples:
        >>> sweep = scalewise.measure("linear", strategy="single", devices=1, batch=10, budget=1, out="sweep")
        >>> [cell.status for cell in sweep.measurements]
        ['ok']
    """
    devices, hosts, links = one_or_more(devices), one_or_more(hosts), one_or_more(link)
    _check(protocol, interval, budget, budget_total, epochs, links)
    if batch is not None and batch_per_device is not None:
        raise UserError("--batch and --batch-per-device exclude each other; leave one out")
    chosen, shape, classes = _chosen(workloads, input_shape, classes)
    sizes = next((sizes for sizes in (batch_per_device, batch) if sizes is not None), DEFAULT_BATCH)
    axes = Axes(
        list(chosen),
        [strategy_of(text) for text in one_or_more(strategy)],
        devices,
        one_or_more(sizes),
        batch_per_device is not None,
        hosts,
        links,
    )
    kind = _resolved_kind(device_kind, axes)
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
    data_request = DataRequest(Path(data) if data else None, samples)

    def request(name: str, strategy: Strategy, settings: Settings) -> Request:
        return Request(chosen[name], strategy, settings, data_request, shape, classes)

    conditions = {
        "load": load,
        "cores_per_device": cores_per_device,
        "slice_percent": placement().slice_percent,
        "input": shape,
        "classes": classes,
        "epochs": settings.epochs if protocol == "paper" else None,
    }
    with Store(out) as store:
        if store.measurements and not resume:
            raise UserError(
                f"{out} already holds {len(store.measurements)} measurements; continue with --resume, or name another "
                "folder with --out"
            )
        subjects = {
            name: _subject(store, name, request(name, REFERENCE, settings), conditions | _model_of(workload), protocol)
            for name, workload in chosen.items()
        }
        tasks = [
            _task(point, *subjects[point.workload], protocol, settings, request, placement) for point in grid(axes)
        ]
        finished = {cell.identity: cell for cell in store.measurements if cell.status in FINISHED}
        remaining = [task for task in tasks if _measurement_of(task.cell, finished, execution) is None]
        with Sessions() as sessions:
            sweep = Sweep(remaining, store, sessions, Goal(interval, budget), budget_total, on_progress, on_cell)
            try:
                sweep.run()
            except KeyboardInterrupt:
                done = len(tasks) - len(remaining) + sweep.done
                command = "the same command" if resume else "the same command and --resume"
                raise RunFailed(
                    f"interrupted; {done} of {len(tasks)} cells are in {out}; continue with {command}"
                ) from None
        recorded = {cell.identity: cell for cell in store.measurements}
    measurements = [cell for task in tasks if (cell := _measurement_of(task.cell, recorded, execution))]
    return MeasureResult(Path(out), measurements, len(tasks) - len(remaining), sweep.not_begun)


def _chosen(
    workloads: str | Workload | nn.Module | Sequence[str | Workload | nn.Module],
    input_shape: str | Sequence[int] | None,
    classes: int | None,
) -> tuple[dict[str, str | Workload], str | None, int | None]:
    """Return workloads by name, and the input shape and classes of those that are given by name."""
    several = workloads if isinstance(workloads, Sequence) and not isinstance(workloads, str) else [workloads]
    chosen: dict[str, str | Workload] = {}
    for workload in several:
        given, _, _ = given_workload(workload, input_shape, classes)
        name = named(given) if isinstance(given, str) else given.name
        if name in chosen and chosen[name] != given:
            raise UserError(f"two workloads have the name '{name}'; give one of them as a Workload with another name")
        chosen[name] = name if isinstance(given, str) else given
    if any(isinstance(workload, str) for workload in chosen.values()):
        return chosen, shape_text(input_shape), classes
    return chosen, None, None


def _model_of(workload: str | Workload) -> dict[str, str]:
    """Return a fingerprint of a model that has no source, so that a changed model is not mixed with earlier cells."""
    if isinstance(workload, str):
        return {}
    layers = repr(describe(workload).layers)
    return {"model": hashlib.sha256(layers.encode()).hexdigest()[:16]}


def _check(
    protocol: str,
    interval: float,
    budget: float,
    budget_total: float | None,
    epochs: int | None,
    links: Sequence[str],
) -> None:
    check_limits(protocol, interval, budget, budget_total, epochs)
    for link in links:
        parse_link(link)
    if under_torchrun():
        raise UserError(
            "every rank of torchrun runs this script, but measure needs one that commands the others; start the "
            "command instead: torchrun ... -m scalewise measure"
        )


def _resolved_kind(device_kind: str, axes: Axes) -> str:
    """Resolve device kind 'auto' once, for the largest device count, so that all cells are comparable."""
    Placement(device_kind=device_kind)  # raises UserError if the kind is invalid
    if device_kind != "auto":
        return device_kind
    if hosts := real_hosts():
        return "cuda" if all(host.gpus >= host.devices for host in hosts.present) else "cpu"
    return "cuda" if torch.cuda.device_count() >= max(axes.devices) and max(axes.hosts) == 1 else "cpu"


def _subject(
    store: Store, name: str, request: Request, conditions: dict[str, Any], protocol: Protocol
) -> tuple[Subject, str]:
    """Load a workload and store its environment; raise UserError if earlier cells had a different environment.

    Return the subject and the id of the environment.
    """
    subject = subject_of(name, request, conditions)
    environments = Store.environments(store.folder)
    for measurement in store.measurements:
        if measurement.workload == name and measurement.protocol == protocol:
            check_same(store.folder, environments[measurement.environment], subject.environment)
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
    """Prepare a cell of the grid to be run; a cell that cannot run gets the obstacle instead."""
    cell_settings = replace(settings, batch=point.batch)
    kind = placement().device_kind
    cell = Cell(
        point.workload,
        point.strategy,
        point.devices,
        kind,
        _hosts_of(point),
        point.link,
        point.batch,
        settings.precision,
        subject.optimizer,
        protocol,
        expected_execution(point.strategy, kind, subject.optimizer, settings),
    )

    def request_of(steps: int | None) -> Request:
        own = cell_settings if steps is None else replace(cell_settings, epochs=None, steps=steps)
        return request(point.workload, point.strategy, own)

    if failure := subject.failure:
        status: Status = "oom" if failure.kind == "oom" else "failed"
        return Task(cell, placement(), request_of, subject.samples, environment, failure.sentence, status)
    try:
        cell_settings.check_fits(subject.samples, subject.source)
        cell_placement = placement(point.devices, hosts=point.hosts, link=point.link, servers=point.strategy.servers)
        settled = settle(cell_placement)
        cell_placement = settled if settled.ranks_on else cell_placement
    except UserError as error:
        return Task(cell, placement(), request_of, subject.samples, environment, str(error))
    return Task(cell, cell_placement, request_of, subject.samples, environment)


def _hosts_of(point: Point) -> int:
    """Number of hosts with devices of a cell: real hosts are filled in order."""
    hosts = real_hosts()
    if hosts is None or point.devices + point.strategy.servers > hosts.size:
        return point.hosts
    ranks_on, _ = assign(hosts.present, point.devices, point.strategy.servers)
    return len(set(ranks_on))


def expected_execution(strategy: Strategy, device_kind: str, optimizer: str, settings: Settings) -> str:
    """Predict how execution 'auto' will be resolved, before the data is loaded."""
    if settings.execution != "auto":
        return settings.execution
    captured = (
        strategy.reference
        and device_kind in ("cuda", "slice")
        and optimizer in CAPTURABLE | {"sgd", "momentum"}
        and settings.load in ("auto", "device")
    )
    return "graph" if captured else "eager"


def _measurement_of(cell: Cell, measurements: dict[Any, Measurement], execution: Execution) -> Measurement | None:
    """Look up a cell's measurement; with execution 'auto' it may be eager because no CUDA graph was possible."""
    measurement = measurements.get(cell.identity)
    if measurement is None and execution == "auto" and cell.execution == "graph":
        measurement = measurements.get(replace(cell, execution="eager").identity)
        return measurement if measurement and NO_GRAPH in measurement.flags else None
    return measurement
