"""The survey's section 2.1.4 as an experiment: when is asynchronous training the better choice?

Both train the U-Net on two workers with one parameter server, from the same weights on the same data; what counts is
the time until the training loss, averaged over the last 160 samples, has come down to a given one: within 5 % of what
the synchronous run on equal devices reaches half-way through its steps. The worker that dies does so well before that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from scalewise.atomic import write_atomically
from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed
from scalewise.experiments.curves import Point, seconds_to
from scalewise.experiments.remarks import load_remarks
from scalewise.experiments.sync_vs_async_death import train_through_death
from scalewise.experiments.sync_vs_async_figure import draw
from scalewise.experiments.sync_vs_async_runs import Ran, Runs
from scalewise.experiments.sync_vs_async_words import Times, findings, reached_before_death, shared_cores
from scalewise.findings.machine import machine_text
from scalewise.results.experiment import ExperimentResult
from scalewise.results.lock import sole_writer
from scalewise.results.train import TrainResult
from scalewise.results.units import seconds_text
from scalewise.session.cores import allowed_cores
from scalewise.session.hosts import obstacle
from scalewise.verbs.surroundings import surroundings
from scalewise.verbs.train import train
from scalewise.workloads.resolve import resolve

SYNCHRONOUS, ASYNCHRONOUS = "parameter-server", "parameter-server-async"
WORKLOAD, WORKERS, SERVERS, BATCH = "unet", 2, 1, 16
TARGET_AT, DEATH_AT = 0.5, 0.125
"""Parts of the steps. Asynchronous training may need a third of them to the target: the death comes before."""
TARGET_SLACK = 1.05
"""Losses stay level for a while: a run that goes the same way is not to miss the target by a hair."""
SLOW_LINK = "50mbit"
COLUMNS = ["synchronous", "asynchronous", "samples/s", "last loss", "stale"]


@dataclass(frozen=True)
class Condition:
    """What the workers have to live with."""

    name: str
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    dies: bool = False


CONDITIONS = (
    Condition("equal devices", "two equal workers, loopback"),
    Condition("a straggler", "worker 1 has half a core", {"slow": {1: 0.5}}),
    Condition("a dying worker", f"worker 1 is killed after {DEATH_AT:.1%} of its batches", dies=True),
    Condition("a slow link", f"every worker and the server on a host of its own, {SLOW_LINK}",
              {"hosts": WORKERS, "link": SLOW_LINK}),
)  # fmt: skip
REFERENCE = CONDITIONS[0].name
Done = Mapping[str, Mapping[str, Ran]]
"""By condition and strategy, the synchronous one first."""


def run(out: Path, quick: bool, tell: Callable[[str], None]) -> ExperimentResult:
    """About three minutes if quick, twenty if not. A folder with runs is gone on with."""
    steps = 120 if quick else 600
    data = resolve(WORKLOAD).data(DataRequest())
    here = surroundings(data.source, len(data), {"steps": steps, "batch": BATCH, "died at": DEATH_AT})
    cores = len(allowed_cores())
    remarks = load_remarks(psutil.getloadavg()[0], cores)
    with sole_writer(out):
        ran, left_out = _run_all(Runs(out, here), steps, tell)
        return conclude(out, ran, machine_text(here, "cpu"), cores, [*left_out, *remarks])


def conclude(out: Path, ran: Done, machine: str, cores: int, remarks: Sequence[str] = ()) -> ExperimentResult:
    """The figure, the table and what they say."""
    target = _target(ran[REFERENCE][SYNCHRONOUS])
    times = {
        name: {strategy: seconds_to(found.smoothed, target) for strategy, found in both.items()}
        for name, both in ran.items()
    }
    about = {condition.name: condition.about for condition in CONDITIONS}
    result = ExperimentResult(
        "sync-vs-async",
        [*findings(times, ran, target), *shared_cores(WORKERS, SERVERS, cores), *remarks],
        [f"loss {target:.2f} with", *COLUMNS],
        [_row(name, times[name], ran[name]) for name in ran],
        draw(ran, about, target, _caption(machine), out),
        [out / "sync-vs-async.json", out / "findings.md"],
        {
            "target_loss": target,
            "seconds_to_target": times,
            "seconds_to_death": {
                name: {strategy: found.death_seconds for strategy, found in both.items()} for name, both in ran.items()
            },
            "machine": machine,
        },
        failed=sum(bool(found.reason) for both in ran.values() for found in both.values()),
    )
    curves = {
        name: {strategy: [[p.seconds, p.loss, p.samples] for p in found.points] for strategy, found in both.items()}
        for name, both in ran.items()
    }
    write_atomically(out / "sync-vs-async.json", json.dumps({**result.to_json(), "curves": curves}).encode())
    write_atomically(out / "findings.md", result.to_markdown().encode())
    return result


def _run_all(runs: Runs, steps: int, tell: Callable[[str], None]) -> tuple[Done, list[str]]:
    """What ran, and a sentence for what could not."""
    ran: dict[str, dict[str, Ran]] = {}
    left_out: list[str] = []
    for condition in CONDITIONS:
        if "link" in condition.options and (sentence := obstacle()):
            tell(f"{condition.name}: left out, {sentence}")
            left_out.append(f"With {condition.name} nothing was run, so nothing is known of it: {sentence}.")
            continue
        ran[condition.name] = {}
        for strategy in (SYNCHRONOUS, ASYNCHRONOUS):
            found = runs.find(condition.name, strategy)
            tell(f"{condition.name}: {strategy}, {steps} steps of {BATCH} samples{' as found' if found else ' ...'}")
            found = found or runs.do(condition.name, strategy, partial(_ran, condition, strategy, steps))
            tell(f"  {found.reason or _told(found)}")
            ran[condition.name][strategy] = found
    return ran, left_out


def _ran(condition: Condition, strategy: str, steps: int) -> Ran:
    def run(workload: str, **more: Any) -> TrainResult:
        return _train(workload, strategy=strategy, steps=steps, **condition.options, **more)

    if condition.dies:
        return train_through_death(WORKLOAD, int(DEATH_AT * steps), run, ends_the_run=strategy == SYNCHRONOUS)
    result = run(WORKLOAD)
    rate = result.samples_per_second or BATCH / result.step_seconds.median
    return Ran([Point(*each) for each in result.curve], rate, result.staleness.mean if result.staleness else None)


def _train(workload: str, devices: int = WORKERS, **options: Any) -> TrainResult:
    try:
        return train(workload, devices=devices, device_kind="cpu", batch=BATCH, **options)
    except RunFailed as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # told how to go on from a checkpoint that is not kept
            raise KeyboardInterrupt from None
        raise


def _target(reference: Ran) -> float:
    if reference.reason:
        raise RunFailed(f"the synchronous run on equal devices {reference.reason}")
    smoothed = reference.smoothed
    return TARGET_SLACK * min(point.loss for point in smoothed[: int(TARGET_AT * len(smoothed))])


def _caption(machine: str) -> str:
    return f"U-Net, {WORKERS} workers and {SERVERS} server, {WORKERS + SERVERS} processes on {machine}"


def _told(found: Ran) -> str:
    return f"loss {found.points[-1].loss:.3f} after {seconds_text(found.points[-1].seconds)}"


def _row(name: str, times: Times, both: Mapping[str, Ran]) -> list[str]:
    early = reached_before_death(times, both)
    reached = [
        "never" if seconds is None else seconds_text(seconds) + " (before the death)" * (strategy in early)
        for strategy, seconds in times.items()
    ]
    rates = [f"{found.samples_per_second:.0f}" if found.samples_per_second else "-" for found in both.values()]
    losses = [f"{found.smoothed[-1].loss:.2f}" if found.smoothed else "-" for found in both.values()]
    stale = both[ASYNCHRONOUS].staleness
    return [name, *reached, " / ".join(rates), " / ".join(losses), f"{stale:.2f}" if stale is not None else "-"]
