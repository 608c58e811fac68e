"""Types of arguments of the Python functions: what is converted, what is refused, and with which message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from torch import nn

import scalewise
from scalewise.core.arguments import checked, converted, whole_numbers
from scalewise.core.errors import UserError

MODULE = nn.Sequential(nn.Linear(12, 3))


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("int | Sequence[int]", 10, [10]),
        ("int | Sequence[int]", (10, 20), [10, 20]),
        ("Sequence[int]", numpy.array([10, 20]), [10, 20]),
        ("int | Sequence[int] | None", None, None),
        ("int | None", numpy.int64(3), 3),
        ("float", 2, 2),
        ("str | tuple[int, ...] | None", (3, 8, 8), [3, 8, 8]),
        ("str | tuple[int, ...] | None", "3x8x8", "3x8x8"),
        ("Path | str | None", Path("a"), Path("a")),
        ("Precision", "bf16", "bf16"),
        ("Mapping[int, float] | None", {1: 0.5}, {1: 0.5}),
    ],
)
def test_values_of_the_annotated_type_are_accepted(annotation: str, value: object, expected: object) -> None:
    assert converted("value", value, annotation) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scalewise.train("linear", batch="abc"), "'--batch': it must be a whole number, not 'abc'"),  # type: ignore[arg-type]
        (lambda: scalewise.train("linear", batch=[10]), "'--batch': it must be a whole number, not [10]"),  # type: ignore[arg-type]
        (lambda: scalewise.train("linear", batch=True), "'--batch': it must be a whole number, not True"),
        (lambda: scalewise.train("linear", learning_rate="x"), "'--learning-rate': it must be a number, not 'x'"),  # type: ignore[arg-type]
        (lambda: scalewise.train("linear", timeout_seconds="1"), "'--timeout': it must be a number, not '1'"),  # type: ignore[arg-type]
        (lambda: scalewise.train("linear", precision="fp8"), "'fp8' is not one of 'fp32', 'tf32', 'bf16', 'fp16'"),  # type: ignore[arg-type]
        (lambda: scalewise.train("linear", resume="yes"), "'--resume': it must be True or False, not 'yes'"),  # type: ignore[arg-type]
        (lambda: scalewise.train(3), "the workload is 3; it must be a name, a torch.nn.Module or a scalewise.Workload"),  # type: ignore[arg-type]
        (lambda: scalewise.train(nn.Linear), "call it, so that it returns a model"),  # type: ignore[arg-type]
        (lambda: scalewise.train(MODULE), "give its input shape, as in input_shape=(3, 224, 224)"),
        (lambda: scalewise.train(MODULE, input_shape=12), "it must be a text or sizes like (3, 224, 224), not 12"),  # type: ignore[arg-type]
        (lambda: scalewise.advise("linear", batch=[0]), "--batch is [0]; it must be whole numbers from 1"),
        (lambda: scalewise.advise("linear", devices=1.5), "--devices is 1.5; it must be whole numbers from 1"),  # type: ignore[arg-type]
        (lambda: scalewise.advise("linear", samples=0), "--samples is 0; it must be 1 or more"),
        (lambda: scalewise.advise("linear", strategy=["mirrored", 3]), "it must be a text or a list of texts"),  # type: ignore[list-item]
        (lambda: scalewise.measure(3, out="x"), "the workload is 3"),  # type: ignore[arg-type]
        (lambda: scalewise.measure("linear", out=3), "'--out': it must be a path, not 3"),  # type: ignore[arg-type]
        (lambda: scalewise.profile("linear", batch="a"), "--batch is 'a'; it must be whole numbers from 1"),  # type: ignore[arg-type]
        (lambda: scalewise.describe("linear", classes="a"), "'--classes': it must be a whole number, not 'a'"),  # type: ignore[arg-type]
        (lambda: scalewise.validate(3), "'--tables': it must be a text or a list of texts, not 3"),  # type: ignore[arg-type]
    ],
)
def test_other_types_are_refused_in_one_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_list_gets_the_sentence_of_the_command_line() -> None:
    with pytest.raises(UserError) as from_text:
        whole_numbers("--batch", "abc")  # as the command line calls it
    with pytest.raises(UserError) as from_python:
        scalewise.advise("linear", batch="abc")  # type: ignore[arg-type]
    assert str(from_text.value) == str(from_python.value)


def test_a_text_with_commas_is_a_list_on_the_command_line_only() -> None:
    assert whole_numbers("--batch", "10, 20") == [10, 20]


def test_the_signature_and_the_documentation_are_kept() -> None:
    @checked
    def function(count: int, *names: str, flag: bool = False) -> tuple[object, ...]:
        """Return the arguments."""
        return (count, names, flag)

    assert function(numpy.int64(2), "a", "b", flag=True) == (2, ("a", "b"), True)
    assert (function.__name__, function.__doc__) == ("function", "Return the arguments.")
    with pytest.raises(TypeError, match="missing a required argument: 'count'"):
        function()  # type: ignore[call-arg]
