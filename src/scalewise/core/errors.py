"""Exceptions that end a command: bad input (exit code 2) and failed runs (exit code 1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

_PYDANTIC_PHRASES = {
    "Value error, ": "",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    "Input should be a valid integer": "it must be a whole number",
    "Input should be a valid number": "it must be a number",
    "Input should be": "it must be",
}

Kind = Literal["died", "hang", "user", "oom", "error", "timeout", "lost"]
"""Kinds of failure. oom: out of memory. user: bad input. timeout: a peer did not answer. lost: its connection broke."""


@dataclass(frozen=True)
class SmallerBatch:
    """Train with a smaller batch."""


@dataclass(frozen=True)
class Accumulate:
    """Compute each batch in several parts and add up their gradients."""

    parts: int


@dataclass(frozen=True)
class LowerLearningRate:
    """Train with a lower learning rate."""

    below: float
    """Learning rate of the failed run."""


@dataclass(frozen=True)
class UseStrategy:
    """Train with a strategy for models that are larger than one device."""

    name: str
    planned_bytes: int | None = None
    """Planned memory of the device that needs the most; None if memory was not planned."""
    devices: int | None = None
    """Number of devices that the strategy needs; None if the run had enough."""
    more_gpus: bool = False
    """Whether the strategy needs more GPUs than the machine has."""


@dataclass(frozen=True)
class NoStrategyFits:
    """State that no strategy is planned to fit the device."""

    limit_bytes: int
    least: UseStrategy | None
    """Strategy that needs the least memory; None if no other strategy can be planned for the model."""


Remedy = SmallerBatch | Accumulate | LowerLearningRate | UseStrategy | NoStrategyFits


@dataclass(frozen=True)
class Location:
    """Line in the user's code."""

    file: str
    line: int
    code: str = ""
    """Source text of the line."""


@dataclass(frozen=True)
class TooLarge:
    """State that the model does not fit the device with any batch."""

    one_sample_bytes: int | None = None
    """Planned memory of a batch of one sample; None if the weights alone do not fit."""


@dataclass(frozen=True)
class Failure:
    """Reason why one process of a run failed; sent from the rank to the launcher."""

    rank: int
    kind: Kind
    cause: str
    """Short text without the process name, the location and the remedies."""
    who: str = ""
    """Name of the process, such as 'server 1'; empty if the whole run failed."""
    location: Location | None = None
    remedies: tuple[Remedy, ...] = ()
    too_large: TooLarge | None = None
    before_first_step: bool = False
    """Whether memory ran out during the first call of the user's code."""
    users_code: bool = False
    """Whether the user's code raised the error, which counts as bad input if all ranks raise it."""
    details: str = ""
    """Traceback, or stacks of hung ranks."""
    seconds: float = field(default_factory=time.monotonic)
    """Time of the failure on the machine's monotonic clock."""

    @property
    def sentence(self) -> str:
        return f"{_problem_text(self)}{_remedies_text(self.too_large, self.remedies)}"


class UserError(Exception):
    """Bad input (exit code 2): the problem with the given value, then the remedy or the valid values."""

    def __init__(self, problem: str, remedy: str = "", detail: str = "") -> None:
        """Store the parts of the message.

        `problem` is a complete sentence. Where space is short, `remedy` and `detail` can be left out.
        """
        super().__init__(problem, remedy, detail)
        self.problem, self.remedy, self.detail = problem, remedy, detail

    def __str__(self) -> str:
        return self.problem + (f" ({self.detail})" if self.detail else "") + (f"; {self.remedy}" if self.remedy else "")


class UsersCodeFailed(UserError):
    """Error raised by the user's code (exit code 2)."""

    def __init__(self, problem: str, location: Location | None = None) -> None:
        super().__init__(problem)
        self.args = (problem, location)  # pickle calls the class with these arguments
        self.location = location

    def __str__(self) -> str:
        return _location_prefix(self.location) + self.problem


class RunFailed(Exception):
    """Failed run or cell (exit code 1): what failed and why."""

    def __init__(self, problem: str, *remedies: Remedy) -> None:
        super().__init__(problem, *remedies)
        self.problem, self.remedies = problem, remedies

    def __str__(self) -> str:
        return f"{self.problem}{_remedies_text(None, self.remedies)}"


class Interrupted(RunFailed):
    """Run that was stopped by a signal: how far it came and how to continue it."""


class PeerSilent(RunFailed):
    """The process at the other end is alive but does not answer; it may itself be waiting for another process."""


class RankFailed(RunFailed):
    """Failure of a rank that died, hung or raised an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.args = (failure,)
        self.failure = failure
        self.rank, self.kind, self.details = failure.rank, failure.kind, failure.details

    def __str__(self) -> str:
        return self.failure.sentence


def _problem_text(failure: Failure) -> str:
    if failure.kind == "user" or not failure.who:
        return _location_prefix(failure.location) + failure.cause
    if failure.kind in ("died", "hang"):
        return f"{failure.who} {failure.cause}"
    if failure.kind == "oom":
        when = " before the first step" if failure.before_first_step else ""
        return f"{failure.who} ran out of memory{when}: {failure.cause}"
    where = f" at {failure.location.file}, line {failure.location.line}" if failure.location else ""
    return f"{failure.who} failed{where}: {failure.cause}"


def _location_prefix(location: Location | None) -> str:
    return f"{location.file}:{location.line}: " if location else ""


def _remedies_text(too_large: TooLarge | None, remedies: Sequence[Remedy]) -> str:
    """Return text such as '; a smaller --batch, or --accumulate 2, needs less memory'."""
    parts = [_too_large_text(too_large)] if too_large else []
    strategies = [remedy for remedy in remedies if isinstance(remedy, UseStrategy)]
    less_memory = _strategies_text(strategies) if strategies else ""
    accumulate = next(
        (f", or --accumulate {remedy.parts}," for remedy in remedies if isinstance(remedy, Accumulate)), ""
    )
    if any(isinstance(remedy, SmallerBatch) for remedy in remedies):
        smaller_batch = f"a smaller --batch{accumulate} needs less memory"
        less_memory = f"{smaller_batch}, and {less_memory}" if less_memory else smaller_batch
    parts += [less_memory] if less_memory else []
    for remedy in remedies:
        if isinstance(remedy, LowerLearningRate):
            parts.append(f"a learning rate below {remedy.below:g} may help")
        elif isinstance(remedy, NoStrategyFits):
            parts.append(_nothing_fits_text(remedy))
    return "".join(f"; {part}" for part in parts)


def _too_large_text(too_large: TooLarge) -> str:
    if too_large.one_sample_bytes is None:
        return "the model's weights do not fit"
    return f"even a batch of one sample needs {_GB(too_large.one_sample_bytes)}"


def _strategies_text(strategies: Sequence[UseStrategy]) -> str:
    names = [strategy.name for strategy in strategies]
    names_text = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    planned = [
        (f"{strategy.name} " if len(strategies) > 1 else "") + _planned_text(strategy)
        for strategy in strategies
        if strategy.planned_bytes is not None
    ]
    planned_text = f" (planned: {', '.join(planned)})" if planned else ""
    return f"--strategy {names_text} trains models larger than the device{planned_text}"


def _nothing_fits_text(remedy: NoStrategyFits) -> str:
    if remedy.least is None:
        return "no other strategy can be planned for this model"
    return (
        f"no strategy is planned to fit {_GB(remedy.limit_bytes)}: {remedy.least.name} needs the least memory, "
        f"{_planned_text(remedy.least)}"
    )


def _planned_text(strategy: UseStrategy) -> str:
    size = _GB(strategy.planned_bytes or 0)
    if strategy.devices is None:
        return size
    return (
        f"{size} on {strategy.devices} GPUs of this kind"
        if strategy.more_gpus
        else f"{size} with --devices {strategy.devices}"
    )


def _GB(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


def in_our_words(message: str) -> str:
    """Reword a pydantic message to read like the other error messages."""
    for phrase, replacement in _PYDANTIC_PHRASES.items():
        message = message.replace(phrase, replacement)
    return message
