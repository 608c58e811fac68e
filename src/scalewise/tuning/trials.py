"""Run trials in processes of their own, compare them by interleaved repeats, and find the largest batch that fits."""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Timer
from time import monotonic
from typing import Any, TypeVar

import torch

from scalewise.core.errors import RankFailed, RunFailed, UserError
from scalewise.core.statistics import interval_of
from scalewise.core.training_options import ExecutionOptions
from scalewise.core.units import gigabytes_text, seconds_text
from scalewise.launch.forkserver import run_afterwards
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.runtime.execution import refuse_without_compiler
from scalewise.sweep.grid import interval_of_blocks
from scalewise.training.results import Request
from scalewise.tuning.result import BatchSearch, BatchTrial, Deviation, Trial
from scalewise.tuning.trial_tasks import Opened, block_task, deviation_task, open_task

Result = TypeVar("Result")

ROUNDS, FINAL_ROUNDS = 3, 5
"""Repeats of the candidate and of the fastest options when a candidate is tried, and of the baseline at the end."""
BLOCK_SECONDS = 0.5
FEWEST_STEPS, MOST_STEPS = 2, 300
"""Steps of a repeat. On a GPU the first one is not counted, because the queue is idle then."""
ROUNDING_FACTOR = 32.0
"""Number of times by which options may exceed the deviation of a change in the last bit of the weights: they round in
every layer, and add in another order."""
LEAST_ROUNDING = 1e-5
"""Relative deviation of gradients that counts as rounding in any model."""


@dataclass
class OpenTrial:
    """A trial whose process waits for the next repeat."""

    options: ExecutionOptions
    session: Session
    opened: Opened
    blocks: list[list[float]] = field(default_factory=list)
    """Seconds of the steps of the repeats."""

    def repeat(self) -> float:
        """Time a block of steps; return its median."""
        steps = min(max(round(BLOCK_SECONDS / max(self.opened.first_seconds, 1e-6)), FEWEST_STEPS), MOST_STEPS)
        [seconds] = self.session.run(block_task, steps)
        if self.session.placement.device_kind != "cpu":
            seconds = seconds[1:]
        self.blocks.append(seconds)
        return float(median(seconds))

    def close(self) -> None:
        self.session.close()


@dataclass
class Trials:
    """Trials of one workload on one device, and the folder of their compilation caches."""

    request: Request
    """Workload, batch and other settings, with the options of plain eager training."""
    placement: Placement
    deadline: float
    """Time of the monotonic clock at which the search ends."""
    folder: Path
    on_trial: Callable[[str], None] = lambda _: None
    reference: Session | None = None
    """Process that computes deviations."""

    def with_options(self, options: ExecutionOptions) -> Request:
        return replace(self.request, settings=self.request.settings.with_execution(options))

    def open(self, options: ExecutionOptions, *, limited: bool = True) -> OpenTrial:
        """Start the process of a trial, build and compile.

        `limited`: end the process at the deadline, and raise RunFailed.
        """
        self.on_trial(options.label)
        if options.compiles:
            refuse_without_compiler(torch.device("cpu" if self.placement.device_kind == "cpu" else "cuda"))
        session = Session(self.placement)
        session.__enter__()
        try:
            with self._ended_in_time(session) if limited else _no_deadline():
                [opened] = session.run(open_task, self.with_options(options), self._cache(options))
        except BaseException:
            session.close()
            raise
        return OpenTrial(options, session, opened)

    def in_process(self, task: Callable[..., Result], *arguments: Any) -> Result:
        """Run a task in a process of its own."""
        with Session(self.placement) as session:
            [result] = session.run(task, *arguments)
            return result  # type: ignore[no-any-return]

    def deviation(self, options: ExecutionOptions) -> Deviation:
        """Compare one batch with eager fp32 training, in the process that keeps the reference."""
        if self.reference is None or not self.reference.is_open:
            self.reference = Session(self.placement)
            self.reference.__enter__()
        [deviation] = self.reference.run(deviation_task, self.with_options(options), self._cache(options))
        return deviation  # type: ignore[no-any-return]

    def trial(self, opened: OpenTrial, speedup: float, baseline: Deviation | None = None) -> Trial:
        """Combine times and deviation to a trial. `baseline`: deviation of plain eager training in its precision."""
        deviation, notes = None, list(opened.opened.notes)
        try:
            deviation = self.deviation(opened.options)
        except (UserError, RunFailed) as error:
            notes.append(f"deviation not measured: {one_line(error)}")
        times = interval_of_blocks(opened.blocks)
        return Trial(
            opened.options,
            times,
            self.request.settings.batch / times.median,
            speedup,
            opened.opened.peak_memory_bytes,
            deviation,
            opened.opened.compile_seconds,
            exact=deviation is None or is_rounding(deviation, baseline),
            notes=tuple(notes),
        )

    def close(self) -> None:
        if self.reference:
            self.reference.close()

    def _cache(self, options: ExecutionOptions) -> Path:
        """Folder of compiled code; the options have their own, so that compile times are those of an empty cache."""
        return self.folder / "-".join([*options.changed.values(), options.precision])

    @contextmanager
    def _ended_in_time(self, session: Session) -> Iterator[None]:
        """End the process at the deadline and raise RunFailed."""
        started = monotonic()
        timer = Timer(max(self.deadline - started, 0.1), session.abort)
        timer.start()
        try:
            yield
        except RankFailed as error:
            if monotonic() >= self.deadline:
                raise RunFailed(f"not ready within the time limit ({monotonic() - started:.0f} s)") from error
            raise
        finally:
            timer.cancel()


@contextmanager
def _no_deadline() -> Iterator[None]:
    yield


@contextmanager
def trials_of(
    request: Request, placement: Placement, deadline: float, on_trial: Callable[[str], None]
) -> Iterator[Trials]:
    """Create the trials of a request; afterwards their processes and files are gone, also if this process is killed."""
    with tempfile.TemporaryDirectory(prefix="scalewise-tune-", ignore_cleanup_errors=True) as folder:
        trials = Trials(request, placement, deadline, Path(folder), on_trial)
        with run_afterwards(":", if_killed=f"rm -rf {shlex.quote(folder)}"):
            try:
                yield trials
            finally:
                trials.close()


def interleaved_ratio(one: OpenTrial, other: OpenTrial, rounds: int, deadline: float = math.inf) -> float:
    """Return how many times faster `one` is than `other`: the median ratio of repeats that follow each other.

    After the deadline of the monotonic clock, one round is enough.
    """
    ratios: list[float] = []
    for number in range(rounds):
        if ratios and monotonic() > deadline:
            break
        first, second = (one, other) if number % 2 else (other, one)
        seconds = {id(first): first.repeat()}
        seconds[id(second)] = second.repeat()
        ratios.append(seconds[id(other)] / seconds[id(one)])
    return median(ratios)


def is_rounding(deviation: Deviation, baseline: Deviation | None) -> bool:
    """Whether rounding explains a deviation, in a precision whose plain eager training deviates by `baseline`."""
    inherent = 3 * baseline.gradients if baseline else 0.0
    return deviation.gradients <= max(LEAST_ROUNDING, ROUNDING_FACTOR * deviation.rounding, inherent)


def one_line(error: BaseException) -> str:
    """Return the first line of an error."""
    text = error.problem if isinstance(error, UserError) else str(error)
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__


def skipped(options: ExecutionOptions, error: BaseException) -> Trial:
    return Trial(options, interval_of([]), skipped=one_line(error))


FIRST_SHARE = 8
"""The first batch is this part of the tuned one."""
LONGEST_STEP_SECONDS = 5.0
"""Length of a step from which no larger batch is tried."""
SATURATED_GAIN = 1.02
"""Gain of throughput from doubling the batch below which only the largest batch is still of interest."""
SAFE_SHARE = 0.95
"""Share of the memory that the largest batch may need by prediction."""
RETRIES = (1.0, 0.9, 0.75)
"""Shares of the predicted largest batch that are tried in turn, because memory is fragmented."""
MOST_TRIALS = 14


def without_compilation(options: ExecutionOptions, cuda: bool) -> ExecutionOptions:
    """Return the options without compilation, which would take longer than all batches together."""
    if not options.compiles:
        return options
    return replace(options, execution="graph" if cuda else "eager", compile_mode="default")


def search_batches(trials: Trials, options: ExecutionOptions, limit_bytes: int) -> BatchSearch:
    """Double the batch until memory, time or the gain of throughput ends, then try the largest that should fit."""
    batch = max(trials.request.settings.batch // FIRST_SHARE, 1)
    timed: list[BatchTrial] = []
    refused: int | None = None
    ended = f"at most {MOST_TRIALS} batches are tried"
    while len(timed) < MOST_TRIALS:
        if timed and (reason := _obstacle(timed, batch, limit_bytes, trials.deadline)):
            ended = reason
            break
        trial = _time(trials, options, batch)
        timed.append(trial)
        if trial.skipped is not None:
            ended, refused = f"batch {batch:,}: {trial.skipped}", batch
            break
        if len(timed) > 2 and timed[-1].samples_per_second < SATURATED_GAIN * timed[-2].samples_per_second:
            ended = f"doubling the batch to {batch:,} adds less than {SATURATED_GAIN - 1:.0%} throughput"
            break
        batch *= 2
    largest = _largest_by_prediction(timed, limit_bytes)
    for share in RETRIES if largest else ():
        batch = _rounded(share * largest)  # type: ignore[operator]
        if batch <= max((trial.batch for trial in timed if trial.step_seconds), default=0) or batch >= (
            refused or math.inf
        ):
            continue
        if reason := _obstacle(timed, batch, limit_bytes, trials.deadline):
            ended = f"{ended}; by prediction {batch:,} fit in {gigabytes_text(limit_bytes)} (not tried: {reason})"
            break
        timed.append(_time(trials, options, batch))
        if timed[-1].skipped is None:
            ended = f"by prediction, more than {batch:,} do not fit in {gigabytes_text(limit_bytes)}"
            break
        refused, ended = batch, f"batch {batch:,}: {timed[-1].skipped}"
    return BatchSearch(options, tuple(timed), limit_bytes, ended)


def _time(trials: Trials, options: ExecutionOptions, batch: int) -> BatchTrial:
    """Time a batch in a process of its own."""
    request = trials.request
    data = replace(request.data, samples=batch)
    alone = replace(trials, request=replace(request, data=data, settings=replace(request.settings, batch=batch)))
    try:
        opened = alone.open(options)
    except (UserError, RunFailed) as error:
        return BatchTrial(batch, skipped=one_line(error))
    try:
        return BatchTrial(batch, opened.repeat(), opened.opened.peak_memory_bytes)
    finally:
        opened.close()


def _obstacle(timed: Sequence[BatchTrial], batch: int, limit_bytes: int, deadline: float) -> str | None:
    """Reason not to try a batch, from the batches timed so far."""
    if monotonic() > deadline:
        return "the time limit was reached"
    last = [trial for trial in timed if trial.step_seconds][-1:]
    if last and last[0].step_seconds:
        seconds = last[0].step_seconds * batch / last[0].batch
        if seconds > LONGEST_STEP_SECONDS:
            return f"a step of batch {batch:,} would take {seconds_text(seconds)}"
    needed = _predicted_bytes(timed, batch)
    if needed is not None and needed > limit_bytes:
        return f"batch {batch:,} needs about {gigabytes_text(needed)} of {gigabytes_text(limit_bytes)}"
    return None


def _line(timed: Sequence[BatchTrial]) -> tuple[float, float] | None:
    """Bytes of a step without samples, and bytes per sample, from the two largest batches."""
    known = sorted((trial.batch, trial.peak_memory_bytes) for trial in timed if trial.peak_memory_bytes)
    if len(known) < 2:
        return None
    (first, first_bytes), (second, second_bytes) = known[-2:]
    per_sample = (second_bytes - first_bytes) / (second - first)
    return second_bytes - per_sample * second, per_sample


def _predicted_bytes(timed: Sequence[BatchTrial], batch: int) -> float | None:
    line = _line(timed)
    return None if line is None else line[0] + line[1] * batch


def _largest_by_prediction(timed: Sequence[BatchTrial], limit_bytes: int) -> int | None:
    """Largest batch whose predicted memory fits; None if memory does not grow with the batch."""
    line = _line(timed)
    if line is None or line[1] <= 0:
        return None
    return _rounded((SAFE_SHARE * limit_bytes - line[0]) / line[1])


def _rounded(batch: float) -> int:
    """Round down, to a multiple of 8 from 16 on."""
    return int(batch) // 8 * 8 if batch > 16 else int(batch)
