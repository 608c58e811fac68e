"""The survey's section 2.1.4 as an experiment: when is asynchronous training the better choice?

Both train the U-Net on two workers with one parameter server, from the same weights on the same data; what counts is
the time until the training loss, averaged over the last 160 samples, has come down to a given one: within 5 % of what
the synchronous run on equal devices with the same seed reaches in four fifths of its steps. Half-way the U-Net's loss
lies level for a while, where who is sooner may stay. The worker that dies does so well before that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from scalewise.atomic import write_atomically
from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed
from scalewise.experiments.curves import Point, seconds_to
from scalewise.experiments.remarks import cores_in_use, load_remarks
from scalewise.experiments.sync_vs_async_death import train_through_death
from scalewise.experiments.sync_vs_async_figure import draw
from scalewise.experiments.sync_vs_async_runs import Ran, Runs
from scalewise.experiments.sync_vs_async_words import Trial, aimed_for, findings, reached_before_death, shared_cores
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
TARGET_AT, DEATH_AT = 0.8, 0.125
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
    Condition("equal devices", "two equal workers on a fast link (loopback)"),
    Condition("a straggler", "worker 1 has half a core", {"slow": {1: 0.5}}),
    Condition("a dying worker", f"worker 1 is killed after {DEATH_AT:.1%} of its batches", dies=True),
    Condition("a slow link", f"every worker and the server on a host of its own, {SLOW_LINK}",
              {"hosts": WORKERS, "link": SLOW_LINK}),
)  # fmt: skip
REFERENCE = CONDITIONS[0].name
Done = Mapping[str, Mapping[str, Ran]]
"""By condition and strategy, the synchronous one first."""


def run(out: Path, quick: bool, tell: Callable[[str], None], seeds: Sequence[int] = (0,)) -> ExperimentResult:
    """About three minutes for a seed if quick, twenty if not. A folder with runs is gone on with."""
    steps = 120 if quick else 600
    data = resolve(WORKLOAD).data(DataRequest())
    here = surroundings(data.source, len(data), {"steps": steps, "batch": BATCH, "died at": DEATH_AT})
    cores = len(allowed_cores())
    remarks = load_remarks(cores_in_use(), cores)
    with sole_writer(out):
        runs = Runs(out, here)
        done: dict[int, Done] = {}
        left_out: list[str] = []
        for seed in seeds:
            done[seed], left_out = _run_all(runs, seed, steps, tell)
        return conclude(out, done, machine_text(here, "cpu"), cores, [*left_out, *remarks])


def conclude(
    out: Path, done: Mapping[int, Done], machine: str, cores: int, remarks: Sequence[str] = ()
) -> ExperimentResult:
    """The figure, the table and what they say, from the runs with each seed."""
    trials, left_out = _trials(done)
    about = {condition.name: condition.about for condition in CONDITIONS}
    every = [(trial, name, both) for trial in trials for name, both in trial.ran.items()]
    result = ExperimentResult(
        "sync-vs-async",
        [*findings(trials), *left_out, *shared_cores(WORKERS, SERVERS, cores), *remarks],
        [f"loss {aimed_for(trials)} with", *COLUMNS],
        [_row(name, trials) for name in trials[0].ran],
        draw(trials, about, _caption(machine), out),
        [out / "sync-vs-async.json", out / "findings.md"],
        {"seeds": [_told_to_programs(trial) for trial in trials], "machine": machine},
        failed=sum(bool(found.reason) for _, _, both in every for found in both.values()) + len(left_out),
    )
    curves = {
        trial.seed: {
            name: {strategy: [[p.seconds, p.loss, p.samples] for p in found.points] for strategy, found in both.items()}
            for name, both in trial.ran.items()
        }
        for trial in trials
    }
    write_atomically(out / "sync-vs-async.json", json.dumps({**result.to_json(), "curves": curves}).encode())
    write_atomically(out / "findings.md", result.to_markdown().encode())
    return result


def _trials(done: Mapping[int, Done]) -> tuple[list[Trial], list[str]]:
    """And why seeds are left out: what is to be reached comes from their synchronous run on equal devices."""
    trials: list[Trial] = []
    left_out: list[str] = []
    for seed, ran in done.items():
        try:
            trials.append(_trial(seed, ran))
        except RunFailed as error:
            if len(done) == 1 or (not trials and len(left_out) + 1 == len(done)):
                raise
            left_out.append(f"Seed {seed} is left out: {error}.")
    return trials, left_out


def _trial(seed: int, ran: Done) -> Trial:
    target = _target(ran[REFERENCE][SYNCHRONOUS])
    times = {
        name: {strategy: seconds_to(found.smoothed, target) for strategy, found in both.items()}
        for name, both in ran.items()
    }
    return Trial(seed, target, times, ran)


def _told_to_programs(trial: Trial) -> dict[str, Any]:
    return {
        "seed": trial.seed,
        "target_loss": trial.target,
        "seconds_to_target": trial.times,
        "seconds_to_death": {
            name: {strategy: found.death_seconds for strategy, found in both.items()}
            for name, both in trial.ran.items()
        },
        "samples_per_second": {
            name: {strategy: found.samples_per_second for strategy, found in both.items()}
            for name, both in trial.ran.items()
        },
    }


def _run_all(runs: Runs, seed: int, steps: int, tell: Callable[[str], None]) -> tuple[Done, list[str]]:
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
            found = runs.find(condition.name, strategy, seed)
            what = f"{condition.name}, seed {seed}: {strategy}, {steps} steps of {BATCH} samples"
            tell(f"{what}{' as found' if found else ' ...'}")
            found = found or runs.do(condition.name, strategy, seed, partial(_ran, condition, strategy, seed, steps))
            tell(f"  {found.reason or _told(found)}")
            ran[condition.name][strategy] = found
    return ran, left_out


def _ran(condition: Condition, strategy: str, seed: int, steps: int) -> Ran:
    def run(workload: str, **more: Any) -> TrainResult:
        return _train(workload, strategy=strategy, seed=seed, steps=steps, **condition.options, **more)

    if condition.dies:
        return train_through_death(WORKLOAD, int(DEATH_AT * steps), run, ends_the_run=strategy == SYNCHRONOUS)
    result = run(WORKLOAD)
    stale = result.staleness.mean if result.staleness else None
    return Ran([Point(*each) for each in result.curve], result.samples_per_second, stale)


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


def _row(name: str, trials: Sequence[Trial]) -> list[str]:
    """Of several seeds the medians, and of losses at the end all there were."""
    reached = [_reached(name, strategy, trials) for strategy in trials[0].times[name]]
    rates, losses = [], []
    for strategy in trials[0].ran[name]:
        found = [trial.ran[name][strategy] for trial in trials]
        rates.append(_middle((each.samples_per_second for each in found), "{:.0f}"))
        ends = [each.smoothed[-1].loss for each in found if each.smoothed]
        losses.append(" to ".join(dict.fromkeys(f"{end(ends):.2f}" for end in (min, max))) if ends else "-")
    stale = _middle((trial.ran[name][ASYNCHRONOUS].staleness for trial in trials), "{:.2f}")
    return [name, *reached, " / ".join(rates), " / ".join(losses), stale]


def _reached(name: str, strategy: str, trials: Sequence[Trial]) -> str:
    seconds = [trial.times[name][strategy] for trial in trials]
    early = sum(strategy in reached_before_death(trial.times[name], trial.ran[name]) for trial in trials)
    counted = f" {{}} of {len(trials)}" if len(trials) > 1 else ""
    if None not in seconds:
        told = _middle(seconds, "{}")
    elif len(trials) == 1:
        told = "never"
    else:
        told = f"never{counted.format(seconds.count(None))}"
    return told + (f" (before the death{counted.format(early)})" if early else "")


def _middle(values: Iterable[float | None], how: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return seconds_text(median(known)) if how == "{}" else how.format(median(known))
