"""Text of planned and measured memory."""

from __future__ import annotations

import dataclasses

from scalewise.formats.train_result import MemoryPerDevice

MEMORY = MemoryPerDevice(
    4096, 5120, {"weights": 1024, "inputs": 0, "activations": 3072}, [4096], [5120], "host allocator"
)


def test_planned_and_measured() -> None:
    assert MEMORY.text == ("peak per device: 4.0 KiB planned, 5.0 KiB measured (activations 3.0 KiB, weights 1.0 KiB)")


def test_text_gives_the_reason_if_memory_was_not_measured() -> None:
    unmeasured = dataclasses.replace(MEMORY, measured=None, why_not_measured="the run was too short")
    assert unmeasured.text == (
        "peak per device: 4.0 KiB planned (activations 3.0 KiB, weights 1.0 KiB); not measured: the run was too short"
    )


def test_measured_memory_of_a_model_that_cannot_be_planned() -> None:
    assert dataclasses.replace(MEMORY, planned=None, parts={}).text == "peak per device: 5.0 KiB measured; not planned"
