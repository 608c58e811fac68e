"""Which of several failures is the cause."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import DistStoreError

from scalewise.errors import UserError
from scalewise.session.failure import (
    Failure,
    Kind,
    RankFailed,
    first_cause,
    from_exception,
    from_exit,
    from_silence,
    to_exception,
)
from scalewise.step.room import DeviceFull

LESS = "a smaller --batch, or --accumulate 2, needs less"
LESS_OF_PARTS = "a smaller --batch needs less"
"""Where a batch is computed in parts already, and --accumulate would be refused."""
LARGER = "--strategy central-storage, pipeline or sharded trains models larger than the device"
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (ValueError("no\nreally"), "error", "rank 1 failed: ValueError: no"),
        (KeyError(), "error", "rank 1 failed: KeyError"),
        (UserError("batch cannot be 0"), "user", "batch cannot be 0"),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB"
            ),
            "oom",
            f"rank 1 ran out of memory: OutOfMemoryError: CUDA out of memory, tried to allocate 2.00 GiB; {LESS}, and "
            f"{LARGER}",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "oom",
            f"rank 1 ran out of memory: RuntimeError: DefaultCPUAllocator: can't allocate memory; {LESS}",
        ),
        (RuntimeError(GLOO + "pair.cc:547] Connection closed by peer [127.0.0.1]:1234"), "lost", None),
        (RuntimeError(GLOO + "unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation"), "timeout", None),
        (DistStoreError("wait timeout after 4000ms, keys: /crew/group/0//cpu//0/1"), "timeout", None),
        (BrokenPipeError("Broken pipe"), "lost", None),
        (RuntimeError("the dataset's server timed out"), "error", None),
    ],
)
def test_an_exception_is_told_by_its_kind(error: Exception, kind: Kind, sentence: str | None) -> None:
    failure = from_exception(1, error)
    assert failure.kind == kind
    assert failure.sentence == (sentence or f"rank 1 failed: {type(error).__name__}: {error}")
    assert type(error).__name__ in failure.details


def test_weights_that_do_not_fit_are_said_so() -> None:
    def full(_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB.")

    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.nn.Linear(2, 2)._apply(full)  # as `.to(device)` does
    assert from_exception(0, raised.value).sentence == (
        "rank 0 ran out of memory: OutOfMemoryError: CUDA out of memory, tried to allocate 2.00 GiB; the model's "
        f"weights do not fit; {LARGER}"
    )


def test_a_strategy_that_runs_out_of_memory_is_not_suggested_again() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB.")
    error.strategy = "pipeline"  # type: ignore[attr-defined]
    assert from_exception(0, error).sentence.endswith(
        f"GiB; {LESS_OF_PARTS}, and --strategy central-storage or sharded trains models larger than the device"
    )


def test_other_advice_takes_the_place_of_a_ranks_own() -> None:
    failure = from_exception(1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 1."))
    advised = failure.advising("buy a larger one")
    assert (advised.rank, advised.kind, advised.details) == (1, "oom", failure.details)
    assert advised.sentence == (
        "rank 1 ran out of memory: OutOfMemoryError: CUDA out of memory, tried to allocate 2 GiB; buy a larger one"
    )
    assert advised.advising("or two").sentence.endswith("GiB; or two")


def test_memory_that_ran_out_inside_a_library_is_what_went_wrong() -> None:
    error = RuntimeError("Failed to run stage backward:\n  shapes")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB.")
    error.strategy = "pipeline"  # type: ignore[attr-defined]
    failure = from_exception(2, error)
    assert failure.kind == "oom"
    assert failure.sentence == (
        "rank 2 ran out of memory: OutOfMemoryError: CUDA out of memory, tried to allocate 2.00 GiB; "
        f"{LESS_OF_PARTS}, and --strategy central-storage or sharded trains models larger than the device"
    )


@pytest.mark.parametrize(
    "wrapper", ["\n  [Stage 1] failed to run forward:\n  args: shapes", "Failed to run stage backward:"]
)
@pytest.mark.parametrize(
    ("inside", "kind", "sentence"),
    [
        (ValueError("no such word\n as"), "error", "rank 1 failed: ValueError: no such word"),
        (UserError("the model must be fed"), "user", "the model must be fed"),
        (RuntimeError(GLOO + "pair.cc:547] Connection closed by peer"), "lost", None),
    ],
)
def test_what_a_pipelines_stage_failed_of_is_said(
    wrapper: str, inside: Exception, kind: Kind, sentence: str | None
) -> None:
    error = RuntimeError(wrapper)
    error.__cause__ = inside
    failure = from_exception(1, error)
    assert (failure.kind, failure.sentence) == (kind, sentence or f"rank 1 failed: RuntimeError: {inside}")
    assert wrapper in failure.details


def test_other_errors_are_not_taken_for_what_they_were_raised_from() -> None:
    error = RuntimeError("the batch has no labels")
    error.__cause__ = KeyError("labels")
    assert from_exception(1, error).sentence == "rank 1 failed: RuntimeError: the batch has no labels"


@pytest.mark.parametrize(("asked", "said"), [(400_000, "0.4 MB"), (99_500_000, "99.5 MB"), (2_560_000_000, "2,560 MB")])
def test_what_was_asked_for_is_a_number_that_people_read(asked: int, said: str) -> None:
    error = RuntimeError(
        f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {asked} bytes. Error code 12"
    )
    assert f"tried to allocate {said} more" in from_exception(0, error).sentence


def test_a_capped_cpu_device_is_told_of_strategies_that_need_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.5")
    error = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "4000000 bytes. Error code 12 (Cannot allocate memory)"
    )
    assert (
        from_exception(0, error).sentence
        == f"rank 0 ran out of memory: tried to allocate 4 MB more; {LESS}, and {LARGER}"
    )
    full = from_exception(0, DeviceFull("what is to stay takes 2 GB, and 0.5 is allowed"))
    assert (full.kind, full.sentence) == (
        "oom",
        "rank 0 ran out of memory: what is to stay takes 2 GB, and 0.5 is allowed; the model's weights do not fit; "
        f"{LARGER}",
    )


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (-9, "rank 2 was killed (signal 9)"),
        (-11, "rank 2 was killed (signal 11)"),
        (3, "rank 2 exited with code 3"),
        (0, "rank 2 ended without an answer"),
        (None, "rank 2 ended without an answer"),
    ],
)
def test_an_exit_is_told_by_its_code(code: int | None, sentence: str) -> None:
    assert from_exit(2, code).sentence == sentence


def test_silent_ranks_are_all_named() -> None:
    assert from_silence([1], 60.0, "").sentence == "rank 1 did not answer within 60 s"
    assert from_silence([1, 3], 2.5, "").sentence == "ranks 1, 3 did not answer within 2.5 s"


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
def test_the_cause_is_named_and_not_its_symptoms(failures: list[tuple[int, Kind, float]], cause: int) -> None:
    assert first_cause([Failure(rank, kind, "", "", seconds) for rank, kind, seconds in failures]).rank == cause


def test_bad_input_found_by_a_rank_is_bad_input() -> None:
    assert isinstance(to_exception(Failure(0, "user", "batch cannot be 0")), UserError)
    failed = to_exception(Failure(3, "oom", "rank 3 ran out of memory", "trace"))
    assert isinstance(failed, RankFailed)
    assert (failed.rank, failed.kind, failed.details) == (3, "oom", "trace")
