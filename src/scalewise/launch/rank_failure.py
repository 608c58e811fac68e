"""Failures of ranks and the first cause among several."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from dataclasses import replace

import torch

from scalewise.core.errors import (
    Failure,
    Kind,
    PeerSilent,
    RankFailed,
    RunFailed,
    SmallerBatch,
    TooLarge,
    UserError,
    UsersCodeFailed,
)
from scalewise.launch.placement import RankGroup
from scalewise.models.resolve import users_line
from scalewise.runtime import torch_errors
from scalewise.runtime.device_memory import DeviceFull

# A rank that dies breaks the connections of its peers, a rank that hangs makes them time out: symptoms come last.
_CAUSES_FIRST: tuple[Kind, ...] = ("died", "user", "oom", "error", "hang", "timeout", "lost")
SYMPTOMS: frozenset[Kind] = frozenset({"timeout", "lost"})

_MODULE_FILE = torch.nn.modules.module.__file__


def from_exception(rank: int, error: BaseException, who: str | None = None) -> Failure:
    """Describe the exception of a rank as a Failure; `who` is the name of the process if it is not 'rank N'."""
    details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    error = _cause_of(error)
    kind = _kind_of(error)
    failure = Failure(rank, kind, _text_of(error), who or f"rank {rank}", users_line(error), details=details)
    if isinstance(error, RankFailed):
        return replace(error.failure, rank=rank, details=details)
    if isinstance(error, UsersCodeFailed):
        return replace(failure, cause=error.problem, location=error.location, users_code=True)
    if isinstance(error, UserError):
        return replace(failure, cause=str(error), location=None)
    if isinstance(error, RunFailed):
        return replace(failure, cause=error.problem, who="", location=None, remedies=error.remedies)
    if kind == "oom":
        too_large = TooLarge() if isinstance(error, DeviceFull) or _moves_weights(error) else None
        return replace(failure, too_large=too_large, remedies=() if too_large else (SmallerBatch(),))
    return failure


def from_exit(rank: int, code: int | str | None, who: str | None = None) -> Failure:
    """Describe the end of a rank's process as a Failure.

    The exit code is negative for a signal, None if unknown, and the reason as text if the rank's host was lost.
    """
    who, details = who or f"rank {rank}", ""
    if isinstance(code, str):
        cause = f"was lost: {code}"
    elif code is None or code == 0:
        cause = "ended without a result"
    elif code > 0:
        cause = f"exited with code {code}"
    else:
        cause, details = f"was killed (signal {-code})", signal.strsignal(-code) or "unknown"
    return Failure(rank, "died", cause, who, details=details)


def from_hang(ranks: Sequence[int], timeout_seconds: float, details: str, group: RankGroup | None = None) -> Failure:
    """Describe ranks that are alive but do not answer as a Failure."""
    group = group or RankGroup(max(ranks) + 1)
    numbers = ", ".join(str(group.first + rank) for rank in ranks)
    who = f"{group.role} {numbers}" if len(ranks) == 1 else f"{group.role}s {numbers}"
    if group.hosts:
        who += " on " + ", ".join(dict.fromkeys(group.hosts[rank] for rank in ranks))
    return Failure(ranks[0], "hang", f"did not answer within {timeout_seconds:g} s", who, details=details)


def first_cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that explains the others: ordered by kind, then by time."""
    return min(failures, key=lambda failure: (_CAUSES_FIRST.index(failure.kind), failure.seconds))


def to_exception(failure: Failure) -> Exception:
    """Turn a failure into an exception: UserError for bad input, RankFailed for any other kind."""
    if failure.kind != "user":
        return RankFailed(failure)
    return UsersCodeFailed(failure.cause, failure.location) if failure.users_code else UserError(failure.cause)


def _text_of(error: BaseException) -> str:
    message = torch_errors.short_message(error)
    if isinstance(error, DeviceFull) or (type(error) is RuntimeError and torch_errors.is_out_of_memory(error)):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _moves_weights(error: BaseException) -> bool:
    """Return whether the error was raised in `model.to(device)`."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == "_apply" and frame.filename == _MODULE_FILE for frame in frames)


def _cause_of(error: BaseException) -> BaseException:
    """Return the error that a library wrapped: out of memory at any depth, or any error of a pipeline stage."""
    cause: BaseException | None = error
    while cause is not None and _kind_of(cause) != "oom":
        cause = cause.__cause__
    if cause is not None:
        return cause
    while error.__cause__ and torch_errors.is_stage_error(error):
        error = error.__cause__
    return error


def _kind_of(error: BaseException) -> Kind:
    if isinstance(error, UserError):
        return "user"
    if torch_errors.is_out_of_memory(error):
        return "oom"
    if isinstance(error, ConnectionError):
        return "lost"
    if isinstance(error, PeerSilent):
        return "timeout"
    if torch_errors.is_communication_error(error):
        if torch_errors.mentions_timeout(error):
            return "timeout"
        if torch_errors.mentions_lost_connection(error):
            return "lost"
    return "error"
