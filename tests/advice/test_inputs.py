"""Names of devices."""

from __future__ import annotations

import pytest

from scalewise.advice.inputs import counted, same_device


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("NVIDIA H200", "H200-SXM5"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla K80", "Tesla K80 (one GK210)"),
    ],
)
def test_two_names_of_the_same_device(one: str, other: str) -> None:
    assert same_device(one, other)


@pytest.mark.parametrize(("one", "other"), [("GTX 1080", "GTX 1080 Ti"), ("NVIDIA H100", "H200-SXM5"), ("EPYC", "T4")])
def test_similar_names_of_different_devices(one: str, other: str) -> None:
    assert not same_device(one, other)


def test_names_of_several_devices() -> None:
    assert (counted("T4"), counted("T4", 4)) == ("one T4", "4 x T4")
    assert (counted("one core of AMD EPYC"), counted("one core of AMD EPYC", 2)) == (
        "one core of AMD EPYC",
        "2 cores of AMD EPYC",
    )
