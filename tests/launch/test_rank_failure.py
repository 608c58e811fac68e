"""Tests of the classification of failures and the choice of the cause."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import DistStoreError

from scalewise.core.errors import (
    Failure,
    Kind,
    Location,
    LowerLearningRate,
    RankFailed,
    RunFailed,
    SmallerBatch,
    TooLarge,
    UserError,
    UsersCodeFailed,
)
from scalewise.launch.rank_failure import first_cause, from_exception, from_exit, from_hang, to_exception
from scalewise.runtime.device_memory import DeviceFull

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
CUDA_FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB"


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (ValueError("no\nreally"), "error", "ValueError: no"),
        (KeyError(), "error", "KeyError"),
        (UserError("batch cannot be 0"), "user", "batch cannot be 0"),
        (
            torch.OutOfMemoryError(CUDA_FULL),
            "oom",
            "OutOfMemoryError: CUDA out of memory, tried to allocate 2.00 GiB",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "oom",
            "DefaultCPUAllocator: can't allocate memory",
        ),
        (RuntimeError(GLOO + "pair.cc:547] Connection closed by peer [127.0.0.1]:1234"), "lost", None),
        (RuntimeError(GLOO + "unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation"), "timeout", None),
        (DistStoreError("wait timeout after 4000ms, keys: /group/group/0//cpu//0/1"), "timeout", None),
        (BrokenPipeError("Broken pipe"), "lost", None),
        (RuntimeError("the dataset's server timed out"), "error", None),
        (RuntimeError("Unable to cast ValueError('no') to Tensor"), "error", "RuntimeError: ValueError('no')"),
    ],
)
def test_an_exception_becomes_a_failure_of_its_kind(error: Exception, kind: Kind, cause: str | None) -> None:
    failure = from_exception(1, error)
    assert (failure.rank, failure.kind, failure.who) == (1, kind, "rank 1")
    assert failure.cause == (cause or f"{type(error).__name__}: {error}")
    assert type(error).__name__ in failure.details
    assert pickle.loads(pickle.dumps(failure)) == failure


@pytest.mark.parametrize("name", ["model.py", "pipeline.py", "central_storage.py"])
def test_remedies_do_not_depend_on_file_names(name: str, tmp_path: Path) -> None:
    """Remedies once depended on the file names in the traceback."""
    file = tmp_path / name
    code = compile(f"\ndef forward(error):\n    raise error('{CUDA_FULL}')", str(file), "exec")
    scope: dict[str, object] = {}
    exec(code, scope)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        scope["forward"](torch.OutOfMemoryError)  # type: ignore[operator]
    failure = from_exception(0, raised.value)
    assert (failure.kind, failure.remedies, failure.too_large) == ("oom", (SmallerBatch(),), None)
    assert failure.location == Location(str(file), 3)


def test_out_of_memory_while_moving_a_model_to_the_device_means_too_large() -> None:
    def full(_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(CUDA_FULL)

    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.nn.Linear(2, 2)._apply(full)  # as `.to(device)` does
    failure = from_exception(0, raised.value)
    assert (failure.kind, failure.too_large, failure.remedies) == ("oom", TooLarge(), ())


def test_a_full_device_means_too_large() -> None:
    failure = from_exception(0, DeviceFull("2 GB needed, 0.5 GB allowed"))
    assert (failure.kind, failure.too_large, failure.remedies) == ("oom", TooLarge(), ())
    assert failure.cause == "2 GB needed, 0.5 GB allowed"


def test_out_of_memory_wrapped_by_a_library_is_the_cause() -> None:
    error = RuntimeError("Failed to run stage backward:\n  shapes")
    error.__cause__ = torch.OutOfMemoryError(CUDA_FULL)
    failure = from_exception(2, error)
    assert failure.kind == "oom"
    assert failure.cause == "OutOfMemoryError: CUDA out of memory, tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    "wrapper", ["\n  [Stage 1] failed to run forward:\n  args: shapes", "Failed to run stage backward:"]
)
@pytest.mark.parametrize(
    ("inside", "kind", "cause"),
    [
        (ValueError("unknown word\n as"), "error", "ValueError: unknown word"),
        (UserError("the model must be fed"), "user", "the model must be fed"),
        (RuntimeError(GLOO + "pair.cc:547] Connection closed by peer"), "lost", None),
    ],
)
def test_the_error_inside_a_pipeline_stage_is_the_cause(
    wrapper: str, inside: Exception, kind: Kind, cause: str | None
) -> None:
    error = RuntimeError(wrapper)
    error.__cause__ = inside
    failure = from_exception(1, error)
    assert (failure.kind, failure.cause) == (kind, cause or f"RuntimeError: {inside}")
    assert wrapper in failure.details


def test_the_cause_of_other_errors_is_ignored() -> None:
    error = RuntimeError("the batch has no labels")
    error.__cause__ = KeyError("labels")
    assert from_exception(1, error).cause == "RuntimeError: the batch has no labels"


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(400_000, "0.4 MB"), (99_500_000, "99.5 MB"), (2_560_000_000, "2,560 MB")]
)
def test_the_size_of_an_allocation_is_rounded(size_bytes: int, text: str) -> None:
    error = RuntimeError(
        f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size_bytes} bytes. Error code 12"
    )
    assert from_exception(0, error).cause == f"tried to allocate {text} more"


def test_a_failed_run_keeps_its_remedies_and_names_no_rank() -> None:
    failure = from_exception(1, RunFailed("the loss became nan at step 3", LowerLearningRate(0.5)))
    assert (failure.who, failure.cause) == ("", "the loss became nan at step 3")
    assert failure.remedies == (LowerLearningRate(0.5),)


def test_the_failure_of_a_nested_run_is_kept() -> None:
    inner = Failure(0, "died", "was killed (signal 9)", "rank 0")
    failure = from_exception(3, RankFailed(inner))
    assert failure == replace(inner, rank=3, details=failure.details)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-9, "was killed (signal 9)"),
        (-11, "was killed (signal 11)"),
        (3, "exited with code 3"),
        (0, "ended without a result"),
        (None, "ended without a result"),
    ],
)
def test_an_exit_code_is_described(code: int | None, cause: str) -> None:
    failure = from_exit(2, code)
    assert (failure.rank, failure.kind, failure.who, failure.cause) == (2, "died", "rank 2", cause)


def test_silent_ranks_are_all_named() -> None:
    assert from_hang([1], 60.0, "").sentence == "rank 1 did not answer within 60 s"
    assert from_hang([1, 3], 2.5, "").sentence == "ranks 1, 3 did not answer within 2.5 s"


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([(0, "lost", 1.0), (1, "died", 2.0), (2, "lost", 1.5)], 1),
        ([(0, "timeout", 1.0), (1, "hang", 4.0)], 1),
        ([(0, "lost", 1.0), (1, "error", 2.0)], 1),
        ([(0, "error", 2.0), (1, "error", 1.0)], 1),
        ([(0, "lost", 2.0), (1, "lost", 1.0)], 1),
        ([(0, "error", 1.0), (1, "died", 2.0)], 1),
    ],
)
def test_the_cause_is_reported_instead_of_its_symptoms(failures: list[tuple[int, Kind, float]], cause: int) -> None:
    assert first_cause([Failure(rank, kind, "", seconds=seconds) for rank, kind, seconds in failures]).rank == cause


def test_a_user_error_of_a_rank_stays_a_user_error() -> None:
    assert isinstance(to_exception(Failure(0, "user", "batch cannot be 0")), UserError)
    failed = to_exception(Failure(3, "oom", "rank 3 ran out of memory", details="trace"))
    assert isinstance(failed, RankFailed)
    assert (failed.rank, failed.kind, failed.details) == (3, "oom", "trace")


def test_the_location_in_the_users_code_is_kept() -> None:
    raised = UsersCodeFailed("KeyError: 'weights'", Location("model.py", 5))
    returned = to_exception(from_exception(1, raised))
    assert isinstance(returned, UsersCodeFailed)
    assert (returned.problem, returned.location) == (raised.problem, raised.location)
