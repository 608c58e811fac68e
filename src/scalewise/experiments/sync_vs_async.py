"""The survey's section 2.1.4 as an experiment: when is asynchronous training the better choice?

Both train the U-Net on two workers with one parameter server, from the same weights on the same data; what counts is
the time until the training loss, averaged over the last 160 samples, has come down to a given one: what the synchronous
run on equal devices reaches half-way through its steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from scalewise.atomic import write_atomically
from scalewise.errors import RunFailed
from scalewise.experiments.curves import Point, later, seconds_to, smooth
from scalewise.experiments.sync_vs_async_figure import WINDOW_SAMPLES, draw
from scalewise.experiments.sync_vs_async_words import findings
from scalewise.results.experiment import ExperimentResult
from scalewise.results.train import TrainResult
from scalewise.results.units import seconds_text
from scalewise.session.hardware import device_name
from scalewise.session.hosts import obstacle
from scalewise.verbs.train import train

SYNCHRONOUS, ASYNCHRONOUS = "parameter-server", "parameter-server-async"
WORKLOAD, WORKERS, BATCH = "unet", 2, 16
TARGET_AT = 0.5
SLOW_LINK = "50mbit"
DEATH_AT, CHECKPOINT_EVERY = 0.4, 10
_DYING = '''"""The workload {name}, whose worker 1 is killed with signal 9 at its batch number {at}, once."""

import os
import signal
from dataclasses import replace
from pathlib import Path

from scalewise.workloads.resolve import resolve

DIED = Path(__file__).with_suffix(".died")


def dying():
    workload = resolve("{name}")
    batches = 0

    def loss(outputs, targets):
        nonlocal batches
        batches += 1
        if batches == {at} and os.environ.get("SCALEWISE_RANK") == "1" and not DIED.exists():
            DIED.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return workload.loss(outputs, targets)

    return replace(workload, loss=loss)
'''


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
    Condition("a dying worker", "worker 1 is killed after 40 % of its work", dies=True),
    Condition("a slow link", f"every worker and the server on a host of its own, {SLOW_LINK} links",
              {"hosts": WORKERS, "link": SLOW_LINK}),
)  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """One run: its losses over time, what it came to, and why not if it did not come through."""

    points: list[Point]
    samples_per_second: float | None = None
    staleness: float | None = None
    reason: str = ""


def run(out: Path, quick: bool, tell: Callable[[str], None]) -> ExperimentResult:
    """About three minutes if quick, twenty if not."""
    steps = 120 if quick else 600
    machine = device_name(torch.device("cpu"))
    ran: dict[str, dict[str, Ran]] = {}
    for condition in CONDITIONS:
        if "link" in condition.options and (sentence := obstacle()):
            tell(f"{condition.name}: left out, {sentence}")
            continue
        ran[condition.name] = {}
        for strategy in (SYNCHRONOUS, ASYNCHRONOUS):
            tell(f"{condition.name}: {strategy}, {steps} steps of {BATCH} samples ...")
            train_it = _until_death_and_on if condition.dies else _straight
            found = ran[condition.name][strategy] = train_it(condition, strategy, steps, out)
            tell(f"  {found.reason or _told(found)}")
    target = _target(ran["equal devices"][SYNCHRONOUS])
    times = {
        name: {strategy: seconds_to(smooth(found.points, WINDOW_SAMPLES), target) for strategy, found in both.items()}
        for name, both in ran.items()
    }
    figures = draw(ran, target, machine, out)
    result = ExperimentResult(
        "sync-vs-async",
        findings(times, ran, target),
        [f"time to loss {target:.2f} with", "synchronous", "asynchronous", "samples/s", "samples/s", "staleness"],
        [_row(name, times[name], ran[name]) for name in ran],
        figures,
        [out / "sync-vs-async.json", out / "findings.md"],
        {"target_loss": target, "seconds_to_target": times, "machine": machine},
        failed=sum(bool(found.reason) for both in ran.values() for found in both.values()),
    )
    curves = {
        name: {strategy: [[p.seconds, p.loss, p.samples] for p in found.points] for strategy, found in both.items()}
        for name, both in ran.items()
    }
    write_atomically(out / "sync-vs-async.json", json.dumps({**result.to_json(), "curves": curves}).encode())
    write_atomically(out / "findings.md", result.to_markdown().encode())
    return result


def _straight(condition: Condition, strategy: str, steps: int, _: Path) -> Ran:
    return _ran(lambda: _train(WORKLOAD, strategy, steps, **condition.options))


def _until_death_and_on(condition: Condition, strategy: str, steps: int, out: Path) -> Ran:  # noqa: ARG001
    """Asynchronous training goes on by itself. Synchronous training ends, and goes on from its last checkpoint with the
    worker that is left."""
    file, checkpoint = out / "dying.py", out / "dying.safetensors"
    for left in (file.with_suffix(".died"), checkpoint):
        left.unlink(missing_ok=True)
    file.write_text(_DYING.format(at=int(DEATH_AT * steps), name=WORKLOAD))
    workload = f"{file}:dying"
    try:
        if strategy == ASYNCHRONOUS:
            return _ran(lambda: _train(workload, strategy, steps))
        started = perf_counter()
        try:
            _train(workload, strategy, steps, checkpoint=checkpoint, checkpoint_every=CHECKPOINT_EVERY)
        except RunFailed:
            died = perf_counter() - started
        else:
            return Ran([], reason="the worker did not die")
        resumed = perf_counter()
        second = _ran(lambda: _train(workload, strategy, steps, devices=1, checkpoint=checkpoint, resume=True))
        if second.reason:
            return second
        # What the second run spent before its first step, starting up, is part of the price.
        begun = perf_counter() - resumed - second.points[-1].seconds
        return Ran(later(second.points, died + begun))
    finally:
        for left in (file.with_suffix(".died"), checkpoint, file):
            left.unlink(missing_ok=True)


def _train(workload: str, strategy: str, steps: int, devices: int = WORKERS, **options: Any) -> TrainResult:
    return train(workload, strategy=strategy, devices=devices, device_kind="cpu", batch=BATCH, steps=steps, **options)


def _ran(run: Callable[[], TrainResult]) -> Ran:
    try:
        result = run()
    except RunFailed as error:
        return Ran([], reason=f"did not come through: {error}")
    rate = result.samples_per_second or BATCH / result.step_seconds.median
    return Ran([Point(*each) for each in result.curve], rate, result.staleness.mean if result.staleness else None)


def _target(reference: Ran) -> float:
    if reference.reason:
        raise RunFailed(f"the synchronous run on equal devices {reference.reason}")
    smoothed = smooth(reference.points, WINDOW_SAMPLES)
    return min(point.loss for point in smoothed[: int(TARGET_AT * len(smoothed))])


def _told(found: Ran) -> str:
    return f"loss {found.points[-1].loss:.3f} after {seconds_text(found.points[-1].seconds)}"


def _row(name: str, times: dict[str, float | None], both: dict[str, Ran]) -> list[str]:
    reached = [seconds_text(seconds) if seconds is not None else "never" for seconds in times.values()]
    rates = [f"{found.samples_per_second:.0f}" if found.samples_per_second else "-" for found in both.values()]
    stale = both[ASYNCHRONOUS].staleness
    return [name, *reached, *rates, f"{stale:.2f}" if stale is not None else "-"]
