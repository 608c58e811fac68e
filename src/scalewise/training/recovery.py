"""Automatic recovery: restart a failed run from its last checkpoint, and choose how often to save one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from scalewise.core.errors import Kind, RankFailed, RunFailed, UserError
from scalewise.core.training_options import TrainingOptions
from scalewise.formats.train_result import Restart
from scalewise.launch.placement import Placement
from scalewise.launch.real_hosts import real_hosts
from scalewise.strategies.base import Strategy
from scalewise.training.checkpoint import saved_progress, usable_version
from scalewise.training.results import Report, Request

Run = TypeVar("Run")

SHARE_FOR_SAVING = 0.017
"""Share of a run that `--checkpoint-every auto` spends on checkpoints; below the promised 2 %."""
FIRST_CHOICE_STEPS = 10
"""Step after which `auto` decides for the first time whether to save, from the estimated cost of saving."""
_LEAST_SAVE_SECONDS, _SAVED_BYTES_PER_SECOND = 0.02, 1e8
_SAVED_BYTES_PER_PARAMETER = 12
"""A weight and two values of Adam, in fp32."""
SURVIVABLE: frozenset[Kind] = frozenset({"died", "hang", "timeout", "lost"})
"""Failures after which the same run can succeed; errors of the code and lack of memory would come back."""


def next_save(done: int, steps: int, elapsed_seconds: float, spent_seconds: float, save_seconds: float) -> int:
    """Return the step after which to save or to decide again; `done` if saving now keeps SHARE_FOR_SAVING.

    `steps` were computed in `elapsed_seconds`, of which checkpoints took `spent_seconds`; one takes `save_seconds`, and
    another one follows at the end of the run. The answer is at most `steps` ahead: first steps may be slow.
    """
    step_seconds = max((elapsed_seconds - spent_seconds) / max(steps, 1), 1e-9)
    wait_seconds = (spent_seconds + 2 * save_seconds) / SHARE_FOR_SAVING - elapsed_seconds
    return done + min(max(0, math.ceil(wait_seconds / step_seconds)), max(steps, 1))


def estimated_save_seconds(parameters: int) -> float:
    """Return the assumed cost of the first checkpoint, on a slow disk; the next ones use the measured cost."""
    return _LEAST_SAVE_SECONDS + parameters * _SAVED_BYTES_PER_PARAMETER / _SAVED_BYTES_PER_SECOND


@dataclass
class Recovery(Generic[Run]):
    """Runs attempts until one succeeds, each from the last checkpoint and in a fresh session."""

    options: TrainingOptions
    attempt: Callable[[Request, Placement, Callable[[Report], None]], Run]
    on_restart: Callable[[str], None] | None = None
    restarts: list[Restart] = field(default_factory=list)
    _last_step: int = 0
    _failed_at: float | None = None

    def run(self, request: Request, placement: Placement, on_report: Callable[[Report], None] | None) -> Run:
        """Return the result of the first attempt that succeeds; raise the failure of the last one."""
        path = request.settings.checkpoint
        before = None if request.settings.resume else _identity(path)
        last_saved: int | None = None
        while True:
            try:
                return self.attempt(request, placement, self._watched(on_report))
            except RankFailed as error:
                self._failed_at = monotonic()
                saved = _saved_step(request, path) if _identity(path) != before else 0
                if error.kind not in SURVIVABLE or len(self.restarts) >= (self.options.max_restarts or 0):
                    raise self._final(error, path if saved else None) from error
                if saved == last_saved:  # no progress since the last restart: one of the devices may be broken
                    placement = self._smaller(placement, request.strategy)
                placement = self._on_remaining_hosts(placement, request.strategy)
                last_saved = saved
                settings = replace(request.settings, resume=saved > 0)
                request = replace(request, settings=settings)
                self._record(error, saved, placement)

    def _record(self, error: RankFailed, saved: int, placement: Placement) -> None:
        repeated = max(0, self._last_step - saved)
        self.restarts.append(Restart(str(error), saved, repeated, 0.0, placement.devices))
        if self.on_restart:
            count = f"restart {len(self.restarts)} of {self.options.max_restarts}"
            self.on_restart(f"{error}; {count} from step {saved} on {placement.devices} devices")

    def _watched(self, on_report: Callable[[Report], None] | None) -> Callable[[Report], None]:
        """Watch the progress of an attempt: the seconds lost end with its first step."""

        def forward(report: Report) -> None:
            if self.restarts and self._failed_at is not None and report.steps_done > self.restarts[-1].from_step:
                lost = monotonic() - self._failed_at
                self.restarts[-1] = replace(self.restarts[-1], seconds_lost=lost)
                self._failed_at = None
            self._last_step = report.steps_done
            if on_report:
                on_report(report)

        return forward

    def _smaller(self, placement: Placement, strategy: Strategy) -> Placement:
        """Return the placement with one device less, if --min-devices and the strategy allow it."""
        devices = placement.devices - 1
        if devices < (self.options.min_devices or placement.devices) or devices < placement.hosts:
            return placement
        try:
            strategy.check_devices(devices)
        except UserError:
            return placement
        return replace(placement, devices=devices, slow={r: s for r, s in placement.slow.items() if r < devices})

    def _on_remaining_hosts(self, placement: Placement, strategy: Strategy) -> Placement:
        """Return the placement with as many devices as remain after the loss of a host, if --min-devices allows it."""
        hosts = real_hosts()
        while hosts and placement.devices + placement.servers > hosts.size:
            smaller = self._smaller(placement, strategy)
            if smaller is placement:
                break  # the next attempt names the lost host
            placement = smaller
        return placement

    def _final(self, error: RankFailed, path: Path | None) -> RunFailed:
        if not self.options.max_restarts or error.kind not in SURVIVABLE:
            return error
        how = f"; continue with --checkpoint {path} --resume" if path else "; no checkpoint was saved"
        count = len(self.restarts)
        return RunFailed(f"{error}; the run was restarted {count} time{'' if count == 1 else 's'}{how}")


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return what changes when the file is replaced; None if there is none."""
    if path is None or not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _saved_step(request: Request, path: Path | None) -> int:
    """Return the step of the newest checkpoint that is not damaged, and make it the current one; 0 without any."""
    if path is None:
        return 0
    usable_version(path, request.settings.keep_checkpoints)
    saved = saved_progress(path)
    return saved.steps_done if saved else 0
