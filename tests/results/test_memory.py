"""A run's memory in words: what is planned, what is measured, and why one of them is missing."""

from __future__ import annotations

import dataclasses

from scalewise.results.memory import MemoryPerDevice

MEMORY = MemoryPerDevice(
    4096, 5120, {"weights": 1024, "inputs": 0, "activations": 3072}, [4096], [5120], "cpu allocator"
)


def test_planned_beside_measured() -> None:
    assert MEMORY.text == (
        "4.0 KiB planned, 5.0 KiB measured at the peak on a device (activations 3.0 KiB, weights 1.0 KiB)"
    )


def test_a_run_that_was_not_watched_says_why() -> None:
    short = dataclasses.replace(MEMORY, measured=None, why_not_measured="runs of fewer than 8 steps are not watched")
    assert short.text == (
        "4.0 KiB planned at the peak on a device (activations 3.0 KiB, weights 1.0 KiB); not measured: runs of fewer "
        "than 8 steps are not watched"
    )


def test_a_model_that_cannot_be_counted_is_measured_all_the_same() -> None:
    assert dataclasses.replace(MEMORY, planned=None, parts={}).text == (
        "5.0 KiB measured at the peak on a device; not planned"
    )
