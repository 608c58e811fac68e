"""A workload before any cell of it is run: what is known of it, or what went wrong when its code was first called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalewise.errors import RunFailed, UserError, UsersCodeFailed
from scalewise.results.environment import Environment
from scalewise.session.failure import Failure, from_exception
from scalewise.training.request import Request
from scalewise.verbs.surroundings import surroundings
from scalewise.workloads.workload import Workload


@dataclass(frozen=True)
class Subject:
    """`trouble` is the user's code's: all cells of this workload end in it, those of others go on."""

    samples: int
    source: str
    optimizer: str
    environment: Environment
    trouble: Failure | None = None


def subject_of(name: str, asked: Request, conditions: Mapping[str, Any]) -> Subject:
    """A UserError where there is nothing of that name, or where it is no workload."""
    workload: Workload | None = None
    try:
        workload = asked.resolved()
        source, samples = _data(workload, asked)
    except UsersCodeFailed as error:
        if _is_nowhere(name, error):
            raise
        # What a workload says of its optimizer is unknown where it could not be made: an nn.Module's is this.
        usual = workload.optimizer if workload else Workload.optimizer
        here = surroundings("", None, conditions)
        return Subject(0, "", asked.settings.optimizer or usual, here, _trouble(name, error))
    here = surroundings(source, samples, conditions)
    return Subject(samples, source, asked.settings.optimizer or workload.optimizer, here)


def _data(workload: Workload, asked: Request) -> tuple[str, int]:
    try:
        data = workload.data(asked.data)
        return data.source, len(data)
    except (UserError, RunFailed):
        raise
    except Exception as error:
        raise UsersCodeFailed(from_exception(0, error, workload.name).sentence) from error


def _is_nowhere(name: str, error: UsersCodeFailed) -> bool:
    """Whether no module of that name was found, which is no failure of the user's code."""
    cause, place = error.__cause__, name.rpartition(":")[0]
    return isinstance(cause, ModuleNotFoundError) and f"{place}.".startswith(f"{cause.name}.")


def _trouble(name: str, error: UsersCodeFailed) -> Failure:
    failure = from_exception(0, error, name)
    return failure.advising("even before its first step") if failure.kind == "oom" else failure
