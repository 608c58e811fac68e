"""What went wrong on which rank, and which of several failures was the cause of the others."""

from __future__ import annotations

import os
import signal
import sysconfig
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch.distributed import DistStoreError

import scalewise
from scalewise.errors import RunFailed, UserError, UsersCodeFailed
from scalewise.step.room import MEMORY_LIMIT, DeviceFull
from scalewise.strategies.registry import STRATEGIES

Kind = Literal["died", "hang", "user", "oom", "error", "timeout", "lost"]

# A rank that dies breaks its peers' connections, one that hangs makes them time out: the symptoms come last.
_CAUSES_FIRST: tuple[Kind, ...] = ("died", "user", "oom", "error", "hang", "timeout", "lost")
SYMPTOMS: frozenset[Kind] = frozenset({"timeout", "lost"})

# gloo raises plain RuntimeErrors, and so does DDP of what a hook raised: their words are all there is to go by.
_LIBRARY_WORDS = ("gloo", "nccl", "processgroup", "tcpstore", "scalewise ring")
_TIMEOUT_WORDS = ("timed out", "timeout")
_LOST_WORDS = (
    "connection closed",
    "connection reset",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "pair is not connected",
)
_NOT_THE_USERS = (
    str(Path(scalewise.__file__).parent),
    "site-packages",
    "dist-packages",
    sysconfig.get_path("stdlib"),
    "<",
)
FOR_LARGE_MODELS = ("central-storage", "pipeline", "sharded")
"""Strategies under which a device need not hold all weights."""
IN_PARTS_ALREADY = {"pipeline", "data-parallel"}
"""Strategies that take no --accumulate."""
WEIGHTS_DO_NOT_FIT = "the model's weights do not fit"
_MODULE_FILE = torch.nn.modules.module.__file__
_OF_A_STAGE = ("failed to run forward:", "Failed to run stage backward")
_MEMORY_WORDS = ("defaultcpuallocator: can't allocate memory", "not enough memory")


@dataclass(frozen=True)
class Failure:
    """One rank's failure, light enough to travel; `seconds` is the machine's monotonic clock."""

    rank: int
    kind: Kind
    sentence: str
    details: str = ""
    seconds: float = field(default_factory=time.monotonic)
    advice: str = ""
    """What the sentence ends with, where it says what to do."""
    of_users_code: bool = False
    """Bad input, if all ranks say so."""

    def on_this_rank_alone(self, who: str) -> Failure:
        """What is no bad input, because other ranks took it."""
        return replace(self, kind="error", sentence=f"{who} failed: {self.sentence}")

    def advising(self, advice: str) -> Failure:
        """The same with other advice, from who knows more than a rank does."""
        return replace(self, sentence=self.sentence.removesuffix(self.advice) + advice, advice=advice)


class RankFailed(RunFailed):
    """A rank died, hung or raised; `details` is its traceback where there is one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure
        self.rank = failure.rank
        self.kind = failure.kind
        self.details = failure.details


def from_exception(rank: int, error: BaseException, who: str | None = None) -> Failure:
    """Called where the error is handled, on the rank itself; `who` it is in words, if not 'rank N'."""
    who = who or f"rank {rank}"
    details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    error = _cause_of(error)
    kind = _kind_of(error)
    message = _without_cast(str(error).strip().partition("\n")[0])
    named = message if isinstance(error, DeviceFull) else f"{type(error).__name__}: {message}"
    what = named if message else type(error).__name__
    if isinstance(error, (UserError, RunFailed)):  # a sentence already
        return Failure(rank, kind, message, details, of_users_code=isinstance(error, UsersCodeFailed))
    if kind == "oom":
        advice = _needs_less(error)
        sentence = f"{who} ran out of memory: {_first_sentences(what)}; {advice}"
        return Failure(rank, kind, sentence, details, advice=advice)
    return Failure(rank, kind, f"{who} failed{_where(error)}: {what}", details)


def from_exit(rank: int, code: int | None, who: str | None = None) -> Failure:
    """A rank whose process ended by itself; the code is negative for a signal, None if nobody saw it."""
    who = who or f"rank {rank}"
    if code is None or code == 0:
        return Failure(rank, "died", f"{who} ended without an answer")
    if code > 0:
        return Failure(rank, "died", f"{who} exited with code {code}")
    name = signal.strsignal(-code) or "unknown"
    return Failure(rank, "died", f"{who} was killed (signal {-code})", details=name)


def from_silence(
    ranks: Sequence[int], timeout_seconds: float, details: str, role: str = "rank", first: int = 0
) -> Failure:
    """Ranks that are alive and do not answer."""
    numbers = ", ".join(str(first + rank) for rank in ranks)
    names = f"{role} {numbers}" if len(ranks) == 1 else f"{role}s {numbers}"
    return Failure(ranks[0], "hang", f"{names} did not answer within {timeout_seconds:g} s", details)


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others: by kind, then by time."""
    return min(failures, key=lambda failure: (_CAUSES_FIRST.index(failure.kind), failure.seconds))


def to_exception(failure: Failure) -> Exception:
    """Bad input found by a rank is bad input still."""
    if failure.kind != "user":
        return RankFailed(failure)
    return (UsersCodeFailed if failure.of_users_code else UserError)(failure.sentence)


def smaller_batch(strategy: str) -> str:
    return "a smaller --batch" if strategy in IN_PARTS_ALREADY else "a smaller --batch, or --accumulate 2,"


def larger_models(strategies: Sequence[str]) -> str:
    named = " or ".join(filter(None, (", ".join(strategies[:-1]), strategies[-1])))
    return f"--strategy {named} trains models larger than the device"


def _needs_less(error: BaseException) -> str:
    """A device may have less memory than its host; without a limit, host memory is all there is to a CPU device."""
    frames = traceback.extract_tb(error.__traceback__)
    running = {Path(frame.filename).stem.replace("_", "-") for frame in frames} | {getattr(error, "strategy", "")}
    smaller = f"{smaller_batch(next(iter(running & IN_PARTS_ALREADY), ''))} needs less"
    others = [name for name in FOR_LARGE_MODELS if name in STRATEGIES and name not in running]
    limited = isinstance(error, torch.OutOfMemoryError) or MEMORY_LIMIT in os.environ
    if not limited or not others:
        return smaller
    moving = any(frame.name == "_apply" and frame.filename == _MODULE_FILE for frame in frames)
    if isinstance(error, DeviceFull) or moving:
        return f"{WEIGHTS_DO_NOT_FIT}; {larger_models(others)}"
    return f"{smaller}, and {larger_models(others)}"


def _first_sentences(message: str) -> str:
    """What torch says of an allocation goes on to advise on its allocator: 'CUDA out of memory, tried to ...' is it."""
    first, _, rest = message.partition(". Tried to allocate ")
    if rest:
        return f"{first}, tried to allocate {rest.partition('. ')[0]}"
    _, _, asked = message.partition("you tried to allocate ")
    if not asked:
        return message
    megabytes = int(asked.split()[0]) / 1e6
    return f"tried to allocate {f'{megabytes:,.0f}' if megabytes >= 100 else f'{megabytes:.3g}'} MB more"


def _without_cast(message: str) -> str:
    """As the hook raised it: DDP takes an exception for a gradient and fails to make a tensor of it."""
    inner = message.removeprefix("Unable to cast ").removesuffix(" to Tensor")
    return inner if len(message) - len(inner) == len("Unable to cast  to Tensor") else message


def _where(error: BaseException) -> str:
    """The line of the user's own code that the error came through, if any: not ours, not a library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(part in frame.filename for part in _NOT_THE_USERS):
            return f" at {frame.filename}, line {frame.lineno}"
    return ""


def _cause_of(error: BaseException) -> BaseException:
    """What ran out of memory, where a library wraps that in an error of its own; of torch's pipelines, what went wrong
    inside: they say which stage failed, and not how."""
    cause: BaseException | None = error
    while cause is not None and _kind_of(cause) != "oom":
        cause = cause.__cause__
    if cause is None:
        cause = error
        while cause.__cause__ and any(words in str(cause) for words in _OF_A_STAGE):
            cause = cause.__cause__
    if cause is not error:
        cause.strategy = getattr(error, "strategy", "")  # type: ignore[attr-defined]
    return cause


def _kind_of(error: BaseException) -> Kind:
    words = str(error).lower()
    if isinstance(error, UserError):
        return "user"
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(word in words for word in _MEMORY_WORDS):
        return "oom"
    if isinstance(error, ConnectionError):
        return "lost"
    if isinstance(error, DistStoreError) or (
        isinstance(error, RuntimeError) and any(word in words for word in _LIBRARY_WORDS)
    ):
        if any(word in words for word in _TIMEOUT_WORDS):
            return "timeout"
        if any(word in words for word in _LOST_WORDS):
            return "lost"
    return "error"
