"""Error messages and the remedies they suggest."""

from __future__ import annotations

import pickle

import pytest

from scalewise.core.errors import (
    Accumulate,
    Failure,
    Location,
    LowerLearningRate,
    NoStrategyFits,
    RankFailed,
    Remedy,
    RunFailed,
    SmallerBatch,
    TooLarge,
    UserError,
    UsersCodeFailed,
    UseStrategy,
)

LINE = Location("model.py", 5)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (Failure(2, "died", "was killed (signal 9)", "server 2"), "server 2 was killed (signal 9)"),
        (Failure(1, "hang", "did not answer within 3 s", "ranks 1, 3"), "ranks 1, 3 did not answer within 3 s"),
        (Failure(1, "error", "ValueError: no", "rank 1"), "rank 1 failed: ValueError: no"),
        (Failure(1, "error", "ValueError: no", "rank 1", LINE), "rank 1 failed at model.py, line 5: ValueError: no"),
        (Failure(1, "user", "batch cannot be 0", "rank 1"), "batch cannot be 0"),
        (Failure(1, "user", "KeyError: 'a'", "rank 1", LINE), "model.py:5: KeyError: 'a'"),
        (Failure(1, "timeout", "server 1 did not answer within 3 s"), "server 1 did not answer within 3 s"),
        (Failure(1, "oom", "full", "rank 1"), "rank 1 ran out of memory: full"),
        (Failure(0, "oom", "full", "m", before_first_step=True), "m ran out of memory before the first step: full"),
    ],
)
def test_failure_message_per_kind(failure: Failure, sentence: str) -> None:
    assert str(RankFailed(failure)) == failure.sentence == sentence


@pytest.mark.parametrize(
    ("too_large", "remedies", "text"),
    [
        (None, (SmallerBatch(),), "a smaller --batch needs less memory"),
        (None, (SmallerBatch(), Accumulate(2)), "a smaller --batch, or --accumulate 2, needs less memory"),
        (
            None,
            (SmallerBatch(), UseStrategy("sharded")),
            "a smaller --batch needs less memory, and --strategy sharded trains models larger than the device",
        ),
        (
            TooLarge(),
            (UseStrategy("sharded", 2 * 10**9, devices=8), UseStrategy("pipeline", 10**9, devices=4, more_gpus=True)),
            "the model's weights do not fit; --strategy sharded or pipeline trains models larger than the device "
            "(planned: sharded 2 GB with --devices 8, pipeline 1 GB on 4 GPUs of this kind)",
        ),
        (
            TooLarge(3 * 10**9),
            (NoStrategyFits(10**9, UseStrategy("layers", 2 * 10**9)),),
            "even a batch of one sample needs 3 GB; no strategy is planned to fit 1 GB: layers needs the least memory, "
            "2 GB",
        ),
        (
            TooLarge(),
            (NoStrategyFits(10**9, None),),
            "the model's weights do not fit; no other strategy can be planned",
        ),
        (None, (LowerLearningRate(0.5),), "a learning rate below 0.5 may help"),
    ],
)
def test_remedies_follow_the_cause(too_large: TooLarge | None, remedies: tuple[Remedy, ...], text: str) -> None:
    failure = Failure(1, "oom", "full", "rank 1", remedies=remedies, too_large=too_large)
    assert failure.sentence.startswith(f"rank 1 ran out of memory: full; {text}")


def test_user_error_message_has_problem_detail_and_remedy() -> None:
    assert str(UserError("8 is too many")) == "8 is too many"
    assert str(UserError("8 is too many", "use 4", "a, b")) == "8 is too many (a, b); use 4"


@pytest.mark.parametrize(
    "error",
    [
        UserError("problem", "remedy", detail="detail"),
        UsersCodeFailed("problem", location=LINE),
        RunFailed("problem", LowerLearningRate(1)),
        RankFailed(Failure(1, "oom", "full", "rank 1", remedies=(SmallerBatch(),))),
    ],
)
def test_errors_can_be_pickled(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
