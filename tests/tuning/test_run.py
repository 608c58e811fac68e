"""Course of a search with trials whose times are known: what is kept, repeated and reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.core.errors import Failure, RankFailed, UserError
from scalewise.core.training_options import ExecutionOptions, Settings
from scalewise.formats.tuned import plain_options
from scalewise.launch.placement import Placement
from scalewise.predict.roofline import DeviceLimits, Roofline
from scalewise.strategies.registry import REFERENCE
from scalewise.training.results import Request
from scalewise.tuning.result import Deviation
from scalewise.tuning.trial_tasks import ModelFacts, Opened, facts_task
from scalewise.tuning.trials import OpenTrial, Trials
from scalewise.tuning.tune import _Run, lower_precisions, without_drift

EAGER = plain_options()
LAST = replace(EAGER, memory_format="channels_last")
GRAPH = replace(LAST, execution="graph")
COMPILED = replace(LAST, execution="compile", compile_mode="reduce-overhead")
FACTS = ModelFacts("GPU", True, True, True, 0, "generated inputs", 80, 2**30)
LIMITS = DeviceLimits("GPU", "achievable", {"fp32": 1.0}, 1.0)


class FakeSession:
    """Process of a trial with a known step time."""

    def __init__(self, device: FakeDevice, options: ExecutionOptions) -> None:
        self.device, self.options, self.placement = device, options, Placement(1, "cuda")

    def run(self, _: Any, steps: int) -> list[list[float]]:
        self.device.drift *= self.device.drift_per_block
        return [[self.device.seconds[self.options] * self.device.drift] * steps]

    def close(self) -> None:
        self.device.open_sessions.remove(self)


class FakeDevice(Trials):
    """Trials on a device with known step times, drift and room for a number of processes."""

    def __init__(self, seconds: dict[ExecutionOptions, float], room: int = 3, drift_per_block: float = 1.0) -> None:
        super().__init__(Request("conv", REFERENCE, Settings(20)), Placement(), math.inf, Path())
        self.seconds, self.room, self.drift_per_block, self.drift = seconds, room, drift_per_block, 1.0
        self.open_sessions: list[FakeSession] = []
        self.deviations: dict[ExecutionOptions, float] = {}
        self.interrupt_at: ExecutionOptions | None = None

    def open(self, options: ExecutionOptions, *, limited: bool = True) -> OpenTrial:
        assert limited == (options != EAGER)
        if options == self.interrupt_at:
            raise KeyboardInterrupt
        if options not in self.seconds:
            raise UserError("this cannot be captured\nsecond line")
        if len(self.open_sessions) >= self.room:
            raise RankFailed(Failure(0, "oom", "out of memory", "rank 0"))
        session = FakeSession(self, options)
        self.open_sessions.append(session)
        compile_seconds = 10.0 if options.compiles else 0.0
        return OpenTrial(options, session, Opened("", 0.1, compile_seconds, 2**20, []))  # type: ignore[arg-type]

    def in_process(self, task: Any, *_: Any) -> Any:
        return FACTS if task is facts_task else Roofline(LIMITS, 20, "fp32", (), 0.0)

    def deviation(self, options: ExecutionOptions) -> Deviation:
        return Deviation(0.0, self.deviations.get(options, 1e-7), 1e-7)


def run_of(device: FakeDevice, *, batches: bool = False) -> _Run:
    run = _Run(lambda _: None, "fp32", "cuda")
    run.run(device, batches)
    assert device.open_sessions == []
    return run


SECONDS = {EAGER: 0.4, LAST: 0.3, GRAPH: 0.2, COMPILED: 0.1}


def test_the_fastest_options_are_found_and_slower_ones_kept() -> None:
    run = run_of(FakeDevice({**SECONDS, replace(COMPILED, memory_format="contiguous"): 0.15}))
    assert run.fastest == COMPILED
    speedups = {trial.options: trial.speedup for trial in run.finished if trial.skipped is None}
    assert speedups == pytest.approx(
        {EAGER: 1.0, LAST: 4 / 3, GRAPH: 2.0, COMPILED: 4.0, replace(COMPILED, memory_format="contiguous"): 8 / 3}
    )
    *_, tf32, bf16, tuned = [trial.options for trial in run.finished]  # tried although tf32 fails
    assert (tf32.precision, bf16.precision, tuned.compile_mode) == ("tf32", "bf16", "max-autotune")


@pytest.mark.parametrize("drift", [0.97, 1.03])
def test_drift_of_the_machine_does_not_decide(drift: float) -> None:
    """Between the first and the last block the machine becomes two to four times slower or faster."""
    device = FakeDevice({**SECONDS, GRAPH: 0.29, COMPILED: 0.28}, drift_per_block=drift)
    run = run_of(device)
    assert not 0.5 < device.drift < 2.0
    assert run.fastest == COMPILED
    by_options = {trial.options: trial for trial in run.finished if trial.skipped is None}
    assert by_options[COMPILED].speedup == pytest.approx(0.4 / 0.28, rel=0.05)
    seconds = {options: trial.step_seconds.median for options, trial in by_options.items()}
    assert seconds[EAGER] / seconds[COMPILED] == pytest.approx(by_options[COMPILED].speedup)
    assert seconds[EAGER] / seconds[LAST] == pytest.approx(4 / 3, rel=0.05)


def test_a_trial_that_fails_is_skipped_with_one_line() -> None:
    run = run_of(FakeDevice({EAGER: 0.4, LAST: 0.3}))
    graph, compiled = [trial for trial in run.finished if trial.options.execution != "eager"]
    assert graph.skipped == compiled.skipped == "this cannot be captured"
    assert run.fastest == LAST


def test_without_memory_for_two_processes_a_trial_runs_alone_and_the_result_says_so() -> None:
    run = run_of(FakeDevice(SECONDS, room=1))
    assert run.fastest == COMPILED
    assert "channels_last: not interleaved, because memory does not suffice for two trials." in run.notes
    assert "Baseline and best are not repeated in turn, because memory does not suffice for both." in run.notes
    speedups = {trial.options: trial.speedup for trial in run.finished if trial.skipped is None}
    assert speedups[COMPILED] == pytest.approx(4.0)


def test_options_that_compute_something_else_are_not_selected() -> None:
    device = FakeDevice(SECONDS)
    device.deviations[COMPILED] = 0.01
    run = run_of(device)
    assert run.fastest == GRAPH
    [wrong] = [trial for trial in run.finished if trial.options == COMPILED]
    assert wrong.speedup == pytest.approx(4.0)
    assert not wrong.exact


def test_compilation_pays_off_against_the_fastest_options_without_it() -> None:
    run = run_of(FakeDevice(SECONDS))
    [compiled] = [trial for trial in run.finished if trial.options == COMPILED]
    assert compiled.payback_steps == 100  # 10 s, at 0.2 s - 0.1 s per step


def test_ctrl_c_keeps_what_is_finished() -> None:
    device = FakeDevice(SECONDS)
    device.interrupt_at = GRAPH
    run = run_of(device)
    assert (run.interrupted, run.fastest) == (True, LAST)
    assert [trial.options for trial in run.finished] == [EAGER, LAST]
    device = FakeDevice(SECONDS)
    device.interrupt_at = EAGER
    with pytest.raises(KeyboardInterrupt):
        run_of(device)


def test_precisions_to_offer() -> None:
    cpu = replace(FACTS, cuda=False, tf32=False)
    assert lower_precisions("fp32", cpu) == ("bf16",)
    assert lower_precisions("fp32", FACTS) == ("tf32", "bf16")
    assert lower_precisions("fp32", replace(FACTS, tf32=False)) == ("fp16",)
    assert lower_precisions("tf32", FACTS) == ("bf16",)
    assert lower_precisions("bf16", FACTS) == ()


def test_times_are_scaled_to_the_speed_of_the_baseline() -> None:
    run = run_of(FakeDevice(SECONDS))
    baseline, other = run.finished[:2]
    slow = replace(other, step_seconds=replace(other.step_seconds, median=0.9, low=0.8, high=1.0))
    scaled = without_drift(slow, baseline)
    assert scaled.step_seconds.median == pytest.approx(0.3)
    assert scaled.step_seconds.low == pytest.approx(0.8 / 3)
