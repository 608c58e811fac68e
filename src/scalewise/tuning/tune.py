"""`scalewise tune`: find the fastest way to train a workload on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import monotonic

import torch
from torch import nn

from scalewise.core.arguments import checked
from scalewise.core.errors import RankFailed, RunFailed, UserError
from scalewise.core.training_options import DEFAULT_BATCH, ExecutionOptions, Precision, Settings, check_data
from scalewise.data.dataset import DataRequest
from scalewise.formats.tuned import TunedKey, plain_options, read_document, result_file, save_document, versions
from scalewise.launch.devices import device_name, settle
from scalewise.launch.forkserver import load_for_ranks
from scalewise.launch.placement import Placement
from scalewise.models.catalogue import check_name, named
from scalewise.models.given_workload import given_workload
from scalewise.models.workload import Workload
from scalewise.predict.roofline import Roofline
from scalewise.strategies.registry import REFERENCE
from scalewise.sweep.grid import interval_of_blocks
from scalewise.training.results import Request
from scalewise.tuning.result import BatchSearch, Deviation, Trial, TuneResult, payback
from scalewise.tuning.search import LEAST_GAIN, Possibilities, Search
from scalewise.tuning.trial_tasks import ModelFacts, facts_task, roofline_task
from scalewise.tuning.trials import (
    FINAL_ROUNDS,
    ROUNDS,
    OpenTrial,
    Trials,
    interleaved_ratio,
    one_line,
    search_batches,
    skipped,
    trials_of,
    without_compilation,
)

TIME_LIMIT_SECONDS = 240.0
SEARCH_SHARE = 0.85
"""Share of the time limit for the search; the rest is for the last repeats and the roofline."""


@dataclass(frozen=True)
class Progress:
    """Progress of the search."""

    done: int
    total: int
    text: str


@checked
def tune(
    workload: str | Workload | nn.Module,
    *,
    batch: int = DEFAULT_BATCH,
    precision: Precision = "fp32",
    device_kind: str = "auto",
    optimizer: str | None = None,
    data: Path | str | None = None,
    input_shape: str | tuple[int, ...] | None = None,
    classes: int | None = None,
    batches: bool = False,
    time_limit: float = TIME_LIMIT_SECONDS,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneResult:
    """Try execution options on one device and find the fastest that change nothing but rounding.

    Every trial runs in a process of its own. The result is saved; the next call with the same workload, device,
    versions, batch and precision returns it.

    Args:
        workload: A name, or "path/to/file.py:function". Objects cannot be sent to the processes of the trials.
        batch: Batch on the one device.
        precision: Precision of matrix multiplications. Lower ones are only offered.
        device_kind: "cpu" (one core), "cuda" (a GPU) or "auto".
        optimizer: Optimizer instead of the workload's.
        data: Folder or file with the data.
        input_shape: Shape of one sample without the batch. Needed for a function that returns an nn.Module.
        classes: Number of classes. Needed for a function that returns an nn.Module.
        batches: Also search the largest batch that fits and the batch at which throughput saturates.
        time_limit: Seconds of the whole search. After 85 % of them no trial starts, and one that still compiles is
            stopped.
        fresh: Measure again instead of returning the saved result.
        on_progress: Function that is called with a `Progress`.

    Returns:
        A `TuneResult`, which prints as a bar chart. `best` is the fastest trial, `command` trains with its options.

    Examples:
        >>> result = scalewise.tune("synthetic", batch=10, device_kind="cpu", time_limit=1)
        >>> result.trials[0].options.execution
        'eager'
    """
    workload, shape, classes = given_workload(workload, input_shape, classes)
    if not isinstance(workload, str):
        raise UserError(f"trials run in processes of their own; name '{workload.name}' as FILE.py:FUNCTION")
    if not time_limit > 0:
        raise UserError(f"--time-limit is {time_limit:g}; it must be a number of seconds above 0")
    if device_kind == "slice":
        raise UserError("tune needs a whole device; valid: --device-kind auto, cpu or cuda")
    check_name(workload, shape, classes)
    check_data("auto", Path(data) if data else None, None)
    workload = named(workload)
    settings = Settings(batch, None, 1, optimizer=optimizer).with_execution(plain_options(precision))
    settings.check()
    placement = settle(Placement(1, device_kind))
    device = device_name(torch.device("cpu" if placement.device_kind == "cpu" else "cuda:0"))
    key = TunedKey(workload, device, shape, classes, optimizer)
    file = result_file(key, batch, precision)
    if not fresh and (result := _saved(file, batches)):
        return result
    load_for_ranks()
    request = Request(workload, REFERENCE, settings, DataRequest(Path(data) if data else None), shape, classes)
    given = {"--input": shape, "--classes": classes, "--data": data, "--optimizer": optimizer}
    arguments = tuple(text for flag, value in given.items() if value is not None for text in (flag, str(value)))
    run = _Run(on_progress or (lambda _: None), precision, placement.device_kind)
    with trials_of(request, placement, monotonic() + SEARCH_SHARE * time_limit, run.report) as trials:
        run.run(trials, batches)
    result = TuneResult(
        workload,
        device,
        placement.device_kind,
        batch,
        precision,
        run.facts.data,
        tuple(run.finished),
        run.fastest,
        run.roofline,
        run.batches,
        versions(),
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        arguments,
        run.interrupted,
        tuple(run.notes),
    )
    return _save(result, file)


def _saved(file: Path, batches: bool) -> TuneResult | None:
    """Return a saved complete result."""
    document = read_document(file)
    if document is None:
        return None
    try:
        result = TuneResult.from_saved(document, str(file))
    except (KeyError, TypeError):
        return None
    if result.interrupted or (batches and result.batches is None):
        return None
    return replace(result, notes=(*result.notes, f"Measured on {result.measured_at[:10]}; --fresh measures again."))


def _save(result: TuneResult, file: Path) -> TuneResult:
    """Save a result, except an interrupted one in place of a complete one."""
    if result.interrupted and _saved(file, batches=False):
        return result
    named_file = replace(result, saved_in=str(file))
    return named_file if save_document(file, named_file.to_saved()) else result


class _Run:
    """State of a search: finished trials, the fastest one, and what they are compared with."""

    facts: ModelFacts
    trials: Trials

    def __init__(self, on_progress: Callable[[Progress], None], precision: Precision, device_kind: str) -> None:
        self.on_progress, self.precision, self.device_kind = on_progress, precision, device_kind
        self.fastest = plain_options(precision)
        self.finished: list[Trial] = []
        self.incumbent: OpenTrial | None = None
        self.speedups: dict[ExecutionOptions, float] = {self.fastest: 1.0}
        self.chained: set[ExecutionOptions] = set()
        """Options that were compared with others than plain eager ones."""
        self.roofline: Roofline | None = None
        self.batches: BatchSearch | None = None
        self.interrupted = False
        self.notes: list[str] = []
        self.total = 0

    def report(self, text: str) -> None:
        self.on_progress(Progress(len(self.finished), max(self.total, len(self.finished) + 1), text))

    def run(self, trials: Trials, batches: bool) -> None:
        """Run all trials; Ctrl-C keeps those that are finished."""
        self.trials = trials
        try:
            self.report("loading the workload")
            self.facts = trials.in_process(facts_task, trials.request)
            self._time_baseline()
            self._search()
            self._time_best_again()
            self._bound()
            if batches:
                self.report("batches")
                self._close_incumbent()
                options = without_compilation(self.fastest, self.facts.cuda)
                self.batches = search_batches(trials, options, self.facts.memory_bytes)
        except KeyboardInterrupt:
            if not self.finished:
                raise
            self.interrupted = True
            self.notes.append(f"Interrupted: {len(self.finished)} trials are finished, others were not tried.")
        finally:
            self._close_incumbent()
        self.finished = [without_drift(trial, self.finished[0]) for trial in self.finished]
        self._add_payback()

    def _time_baseline(self) -> None:
        """Time plain eager training. Its failure ends the search."""
        self.incumbent = self.trials.open(self.fastest, limited=False)
        for _ in range(ROUNDS):
            self.incumbent.repeat()
        self.finished.append(replace(self.trials.trial(self.incumbent, 1.0), exact=True))

    def _search(self) -> None:
        facts = self.facts
        possibilities = Possibilities(
            facts.cuda, facts.channels_last, facts.long_convolutions, lower_precisions(self.precision, facts)
        )
        search = Search(possibilities, self._compare, self.fastest)
        self.total = search.count() + 1
        try:
            search.run()
        finally:  # also after Ctrl-C
            self.fastest = search.fastest

    def _compare(self, candidate: ExecutionOptions, fastest: ExecutionOptions) -> float | None:
        """Time a candidate beside the fastest options so far; return how many times faster it is."""
        if monotonic() >= self.trials.deadline:
            self.finished.append(skipped(candidate, RunFailed("the time limit was reached")))
            return None
        trial: OpenTrial | None = None
        try:
            trial = self._open(candidate)
            ratio = self._ratio(trial, fastest)
            self.speedups[candidate] = ratio * self.speedups[fastest]
            if fastest != self.finished[0].options:
                self.chained.add(candidate)
            base = self._deviation_of_baseline(candidate)
            self.finished.append(self.trials.trial(trial, self.speedups[candidate], base))
        except (UserError, RunFailed) as error:
            self.finished.append(skipped(candidate, error))
            return None
        finally:
            if trial and (self.finished[-1].options != candidate or not self._take_over(trial, fastest)):
                trial.close()
        return ratio if self.finished[-1].exact else 0.0

    def _take_over(self, trial: OpenTrial, fastest: ExecutionOptions) -> bool:
        """Keep the process of a candidate that becomes the fastest; end the one it replaces."""
        last = self.finished[-1]
        faster = last.speedup >= LEAST_GAIN * self.speedups[fastest]
        if last.skipped is not None or not faster or not last.exact or trial.options.precision != self.precision:
            return False
        self._close_incumbent()
        self.incumbent = trial
        return True

    def _open(self, candidate: ExecutionOptions) -> OpenTrial:
        """Open a candidate beside the fastest options; if memory does not suffice for both, without them."""
        try:
            return self.trials.open(candidate)
        except RankFailed as error:
            if error.kind != "oom" or self.incumbent is None:
                raise
        self._close_incumbent()
        self.notes.append(f"{candidate.label}: not interleaved, because memory does not suffice for two trials.")
        return self.trials.open(candidate)

    def _ratio(self, trial: OpenTrial, fastest: ExecutionOptions) -> float:
        if self.incumbent is None:
            [before] = [known for known in self.finished if known.options == fastest]
            seconds = median([trial.repeat() for _ in range(ROUNDS)])
            return before.step_seconds.median / seconds
        return interleaved_ratio(trial, self.incumbent, ROUNDS, self.trials.deadline)

    def _deviation_of_baseline(self, candidate: ExecutionOptions) -> Deviation | None:
        """Deviation of plain eager training in the precision of the candidate, which the precision itself causes."""
        return self.finished[0].deviation if candidate.precision == self.precision else None

    def _time_best_again(self) -> None:
        """Repeat the baseline and the best options in turn; their ratio replaces that of the search."""
        baseline = self.finished[0]
        if self.fastest == baseline.options or self.incumbent is None:
            return
        self.report("baseline and best in turn")
        first = len(self.incumbent.blocks)
        try:
            again = self.trials.open(baseline.options, limited=False)
        except RankFailed as error:
            if error.kind != "oom":
                raise
            self.notes.append("Baseline and best are not repeated in turn, because memory does not suffice for both.")
            return
        try:
            ratio = interleaved_ratio(self.incumbent, again, FINAL_ROUNDS, self.trials.deadline)
        finally:
            again.close()
        scale = ratio / self.speedups[self.fastest]
        blocks = {self.fastest: self.incumbent.blocks[first:], baseline.options: again.blocks}
        self.finished = [self._retimed(trial, blocks, scale) for trial in self.finished]

    def _retimed(self, trial: Trial, blocks: dict[ExecutionOptions, list[list[float]]], scale: float) -> Trial:
        if trial.options == self.fastest or trial.options in self.chained:
            trial = replace(trial, speedup=trial.speedup * scale)
        if trial.options not in blocks:
            return trial
        times = interval_of_blocks(blocks[trial.options])
        rate = self.trials.request.settings.batch / times.median
        return replace(trial, step_seconds=times, samples_per_second=rate)

    def _bound(self) -> None:
        """Compute the roofline of a step."""
        self.report("roofline")
        try:
            self.roofline = self.trials.in_process(roofline_task, self.trials.request)
        except (UserError, RunFailed) as error:
            self.notes.append(f"No roofline: {one_line(error)}.")

    def _add_payback(self) -> None:
        """Add the number of steps after which compilation has paid off, relative to the fastest without it."""
        timed = [trial for trial in self.finished if trial.skipped is None]
        for position, trial in enumerate(self.finished):
            if trial.skipped is None and trial.options.compiles:
                rivals = [
                    other.step_seconds.median
                    for other in timed
                    if not other.options.compiles and other.exact and other.options.precision == trial.options.precision
                ] or [self.finished[0].step_seconds.median]
                steps = payback(rivals, trial.step_seconds.median, trial.compile_seconds)
                self.finished[position] = replace(trial, payback_steps=steps)

    def _close_incumbent(self) -> None:
        if self.incumbent:
            self.incumbent.close()
            self.incumbent = None


def without_drift(trial: Trial, baseline: Trial) -> Trial:
    """Scale a trial's times to the speed that the machine had during the repeats of the baseline.

    The speedup comes from repeats in turn, which drift does not change; times of different minutes are not comparable.
    """
    if trial.skipped is not None:
        return trial
    times = trial.step_seconds
    factor = baseline.step_seconds.median / (trial.speedup * times.median)
    scaled = replace(times, median=factor * times.median, low=factor * times.low, high=factor * times.high)
    return replace(trial, step_seconds=scaled, samples_per_second=trial.samples_per_second / factor)


def lower_precisions(precision: Precision, facts: ModelFacts) -> tuple[Precision, ...]:
    """Precisions to offer: tf32 and bf16 (fp16 on GPUs without bf16) for fp32, bf16 for tf32."""
    half: Precision = "bf16" if facts.tf32 or not facts.cuda else "fp16"
    if precision == "fp32":
        return ("tf32", half) if facts.tf32 else (half,)
    return (half,) if precision == "tf32" else ()
