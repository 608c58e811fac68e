"""Comparison of synchronous and asynchronous training: the experiment.

Both train the U-Net on two workers with one parameter server, from the same weights on the same data. They are compared
by the time until the training loss, averaged over the last 160 samples, reaches a target: within 5% of the loss that
the synchronous run on equal devices with the same seed reaches in 80% of its steps. An earlier target would be
unreliable, because the U-Net's loss stays level for a while half-way. The dying worker dies well before the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from scalewise.core.errors import Interrupted, RunFailed
from scalewise.core.files import sole_writer, write_atomically
from scalewise.core.units import seconds_text
from scalewise.data.dataset import DataRequest
from scalewise.formats.train_result import TrainResult
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.emulated_hosts import obstacle
from scalewise.models.resolve import resolve
from scalewise.reporting.finding import ExperimentResult, machine_text, write_markdown
from scalewise.studies.sync_vs_async_findings import (
    SeedResult,
    draw,
    findings,
    reached_before_death,
    shared_cores,
    target_text,
)
from scalewise.studies.sync_vs_async_runs import LossPoint, RunStore, TrainingRun, seconds_to, train_through_death
from scalewise.sweep.environment import cores_in_use, current_environment, load_remarks
from scalewise.training.train import train

SYNCHRONOUS, ASYNCHRONOUS = "parameter-server", "parameter-server-async"
WORKLOAD, WORKERS, SERVERS, BATCH = "unet", 2, 1, 16
TARGET_AT, DEATH_AT = 0.8, 0.125
"""Fractions of the steps. Asynchronous training may need only a third of the steps to the target, so the worker dies
earlier."""
TARGET_SLACK = 1.05
"""Factor on the target loss, so that a similar run does not miss it by a tiny difference."""
SLOW_LINK = "50mbit"
COLUMNS = ["synchronous", "asynchronous", "samples/s", "final loss", "staleness"]


@dataclass(frozen=True)
class Condition:
    """A condition under which both strategies are compared."""

    name: str
    about: str
    """Description in the figure."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `train`."""
    dies: bool = False
    """Whether worker 1 is killed."""


CONDITIONS = (
    Condition("equal devices", "two equal workers on a fast link (loopback)"),
    Condition("a straggler", "worker 1 has half a core", {"slow": {1: 0.5}}),
    Condition("a dying worker", f"worker 1 is killed after {DEATH_AT:.1%} of its batches", dies=True),
    Condition("a slow link", f"every worker and the server on its own host, {SLOW_LINK} links",
              {"hosts": WORKERS, "link": SLOW_LINK}),
)  # fmt: skip
REFERENCE = CONDITIONS[0].name
SEEDS = (0, 1, 2)
"""Seeds by default. With some seeds an asynchronous run never reaches the loss, so one seed shows no trend."""
RunsByCondition = Mapping[str, Mapping[str, TrainingRun]]
"""Runs by condition and strategy, the synchronous strategy first."""


def run(out: Path, quick: bool, log: Callable[[str], None], seeds: Sequence[int] = SEEDS) -> ExperimentResult:
    """Run the experiment, resuming if the folder has runs; about three minutes per seed if `quick`, else twenty."""
    steps = 120 if quick else 600
    data = resolve(WORKLOAD).data(DataRequest())
    here = current_environment(data.source, len(data), {"steps": steps, "batch": BATCH, "died at": DEATH_AT})
    cores = len(allowed_cores())
    remarks = load_remarks(cores_in_use(), cores)
    with sole_writer(out):
        store = RunStore(out, here)
        runs: dict[int, RunsByCondition] = {}
        left_out: list[str] = []
        for seed in seeds:
            runs[seed], left_out = _run_all(store, seed, steps, log)
        return conclude(out, runs, machine_text(here, "cpu"), cores, [*left_out, *remarks])


def conclude(
    out: Path, runs: Mapping[int, RunsByCondition], machine: str, cores: int, remarks: Sequence[str] = ()
) -> ExperimentResult:
    """Draw the figure and write table and findings from the runs of each seed."""
    results, left_out = _seed_results(runs)
    about = {condition.name: condition.about for condition in CONDITIONS}
    failed = [
        run for result in results for by_strategy in result.runs.values() for run in by_strategy.values() if run.reason
    ]
    document = ExperimentResult(
        "sync-vs-async",
        [*findings(results), *left_out, *shared_cores(WORKERS, SERVERS, cores), *remarks],
        [f"time to loss {target_text(results)} with", *COLUMNS],
        [_row(name, results) for name in results[0].runs],
        draw(results, about, _caption(machine), out),
        [out / "sync-vs-async.json", out / "findings.md"],
        {"seeds": [_to_json(result) for result in results], "machine": machine},
        failed=len(failed) + len(left_out),
    )
    curves = {
        result.seed: {
            name: {
                strategy: [[p.seconds, p.loss, p.samples] for p in run.points] for strategy, run in by_strategy.items()
            }
            for name, by_strategy in result.runs.items()
        }
        for result in results
    }
    write_atomically(out / "sync-vs-async.json", json.dumps({**document.to_json(), "curves": curves}).encode())
    write_markdown(out / "findings.md", document.to_markdown())
    return document


def _seed_results(runs: Mapping[int, RunsByCondition]) -> tuple[list[SeedResult], list[str]]:
    """Return the results, and a sentence for each seed whose reference run failed, so that it has no target loss."""
    results: list[SeedResult] = []
    left_out: list[str] = []
    for seed, by_condition in runs.items():
        try:
            results.append(_seed_result(seed, by_condition))
        except RunFailed as error:
            if len(runs) == 1 or (not results and len(left_out) + 1 == len(runs)):
                raise
            left_out.append(f"Seed {seed} is left out: {error}.")
    return results, left_out


def _seed_result(seed: int, runs: RunsByCondition) -> SeedResult:
    target = _target(runs[REFERENCE][SYNCHRONOUS])
    times = {
        name: {strategy: seconds_to(run.smoothed, target) for strategy, run in by_strategy.items()}
        for name, by_strategy in runs.items()
    }
    return SeedResult(seed, target, times, runs)


def _to_json(result: SeedResult) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "target_loss": result.target,
        "seconds_to_target": result.times,
        "seconds_to_death": {
            name: {strategy: run.death_seconds for strategy, run in by_strategy.items()}
            for name, by_strategy in result.runs.items()
        },
        "samples_per_second": {
            name: {strategy: run.samples_per_second for strategy, run in by_strategy.items()}
            for name, by_strategy in result.runs.items()
        },
    }


def _run_all(store: RunStore, seed: int, steps: int, log: Callable[[str], None]) -> tuple[RunsByCondition, list[str]]:
    """Return the runs under all conditions, and a sentence for each condition that this machine cannot run."""
    runs: dict[str, dict[str, TrainingRun]] = {}
    left_out: list[str] = []
    for condition in CONDITIONS:
        if "link" in condition.options and (sentence := obstacle()):
            log(f"{condition.name}: left out, {sentence}")
            left_out.append(f"With {condition.name} nothing was run: {sentence}.")
            continue
        runs[condition.name] = {}
        for strategy in (SYNCHRONOUS, ASYNCHRONOUS):
            saved = store.find(condition.name, strategy, seed)
            description = f"{condition.name}, seed {seed}: {strategy}, {steps} steps of {BATCH} samples"
            log(f"{description}{' (from an earlier run)' if saved else ' ...'}")
            run = saved or store.do(condition.name, strategy, seed, partial(_run, condition, strategy, seed, steps))
            log(f"  {run.reason or _final_loss_text(run)}")
            runs[condition.name][strategy] = run
    return runs, left_out


def _run(condition: Condition, strategy: str, seed: int, steps: int) -> TrainingRun:
    def run(workload: str, **more: Any) -> TrainResult:
        return _train(workload, strategy=strategy, seed=seed, steps=steps, **condition.options, **more)

    if condition.dies:
        return train_through_death(WORKLOAD, int(DEATH_AT * steps), run, ends_the_run=strategy == SYNCHRONOUS)
    result = run(WORKLOAD)
    staleness = result.staleness.mean if result.staleness else None
    return TrainingRun([LossPoint(*point) for point in result.curve], result.samples_per_second, staleness)


def _train(workload: str, devices: int = WORKERS, **options: Any) -> TrainResult:
    try:
        return train(workload, devices=devices, device_kind="cpu", batch=BATCH, **options)
    except RunFailed as error:
        if isinstance(error, Interrupted):  # its message names a checkpoint that is deleted
            raise KeyboardInterrupt from None
        raise


def _target(reference: TrainingRun) -> float:
    if reference.reason:
        raise RunFailed(f"the synchronous run on equal devices {reference.reason}")
    smoothed = reference.smoothed
    return TARGET_SLACK * min(point.loss for point in smoothed[: int(TARGET_AT * len(smoothed))])


def _caption(machine: str) -> str:
    return f"U-Net, {WORKERS} workers and {SERVERS} server, {WORKERS + SERVERS} processes on {machine}"


def _final_loss_text(run: TrainingRun) -> str:
    return f"loss {run.points[-1].loss:.3f} after {seconds_text(run.points[-1].seconds)}"


def _row(name: str, results: Sequence[SeedResult]) -> list[str]:
    """Return the table row of a condition: medians over the seeds, and the range of final losses."""
    times = [_time_text(name, strategy, results) for strategy in results[0].times[name]]
    rates, losses = [], []
    for strategy in results[0].runs[name]:
        runs = [result.runs[name][strategy] for result in results]
        rates.append(_median_text((run.samples_per_second for run in runs), "{:.0f}"))
        final = [run.smoothed[-1].loss for run in runs if run.smoothed]
        losses.append(" to ".join(dict.fromkeys(f"{end(final):.2f}" for end in (min, max))) if final else "-")
    staleness = _median_text((result.runs[name][ASYNCHRONOUS].staleness for result in results), "{:.2f}")
    return [name, *times, " / ".join(rates), " / ".join(losses), staleness]


def _time_text(name: str, strategy: str, results: Sequence[SeedResult]) -> str:
    seconds = [result.times[name][strategy] for result in results]
    early = sum(strategy in reached_before_death(result.times[name], result.runs[name]) for result in results)
    count = f" {{}} of {len(results)}" if len(results) > 1 else ""
    if None not in seconds:
        text = _median_text(seconds, "{}")
    elif len(results) == 1:
        text = "never"
    else:
        text = f"never{count.format(seconds.count(None))}"
    return text + (f" (before the death{count.format(early)})" if early else "")


def _median_text(values: Iterable[float | None], template: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return seconds_text(median(known)) if template == "{}" else template.format(median(known))
