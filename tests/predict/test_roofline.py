"""Roofline bound of a step, from operators and the rates of a device."""

from __future__ import annotations

import pytest

from scalewise.hardware.gpus import gpu_named
from scalewise.predict.operators import Operator
from scalewise.predict.roofline import DeviceLimits, achievable_limits, peak_limits, roofline_of

LIMITS = DeviceLimits("device", "measured", {"fp32": 1.0, "bf16": 4.0}, 100.0)
PRODUCT = Operator("aten.mm", "matmul", "forward", "fp32", flops=2e12, bytes_read=1e9, bytes_written=0.0)
HALF = Operator("aten.mm", "matmul", "backward", "bf16", flops=2e12, bytes_read=1e9, bytes_written=0.0, count=2.0)
RELU = Operator("aten.relu", "elementwise", "forward", "fp32", flops=1e12, bytes_read=5e9, bytes_written=5e9)


def test_an_operator_takes_the_longer_of_arithmetic_and_memory_traffic() -> None:
    roofline = roofline_of([PRODUCT, HALF, RELU], [PRODUCT, HALF, RELU, RELU], LIMITS, 8, "fp32")
    assert [(cost.name, cost.phase, str(cost.limited_by)) for cost in roofline.operators] == [
        ("mm", "forward", "compute"),
        ("mm", "backward", "compute"),
        ("relu", "forward", "memory"),  # its flops are not those of a matrix product
    ]
    assert [cost.seconds for cost in roofline.operators] == pytest.approx([2.0, 1.0, 0.1])
    assert roofline.seconds == pytest.approx(3.1)
    assert roofline.compute_seconds == pytest.approx(3.0)
    assert roofline.unfused_seconds == pytest.approx(3.2)
    assert roofline.fraction(6.2) == pytest.approx(0.5)


def test_json_has_the_five_most_expensive_operators_and_the_fraction_reached() -> None:
    operators = [
        Operator(f"aten.op{number}", "copy", "forward", "fp32", 0.0, number * 1e9, 0.0, kernels=2.0)
        for number in range(1, 8)
    ]
    document = roofline_of(operators, operators, LIMITS, 8, "fp32").to_json(0.56)
    assert [row["name"] for row in document["operators"]] == ["op7", "op6", "op5", "op4", "op3"]
    assert document["operators"][0]["share"] == pytest.approx(0.25)
    assert document["operators"][0]["kernels"] == 2
    assert document["limits"]["kind"] == "measured"
    assert (document["seconds"], document["peak_seconds"]) == (pytest.approx(0.28), None)
    assert document["fraction_reached"] == pytest.approx(0.5)
    assert "fraction_reached" not in roofline_of(operators, operators, LIMITS, 8, "fp32").to_json()


def test_achievable_rates_of_a_gpu_are_below_its_peaks() -> None:
    for name in ("h200", "a100", "t4"):
        achievable, peak = achievable_limits(gpu_named(name)), peak_limits(gpu_named(name))
        assert (achievable.kind, peak.kind) == ("achievable", "peak")
        assert achievable.GBps < peak.GBps == gpu_named(name).memory_GBps
        assert all(achievable.TFLOPS[precision] < peak.TFLOPS[precision] for precision in ("fp32", "fp16"))
        roofline = roofline_of([PRODUCT], [PRODUCT], achievable, 8, "fp32", peak)
        assert roofline.peak_seconds is not None
        assert roofline.peak_seconds < roofline.seconds


def test_only_long_direct_convolutions_may_be_faster_than_the_bound() -> None:
    for window, long in (((3, 3), False), ((7, 7), False), ((200,), True)):
        conv = Operator("aten.convolution", "conv", "forward", "fp32", 1e12, 1e9, 1e9, window=window)
        assert roofline_of([conv], [conv], LIMITS, 8, "fp32").direct_long_convolutions == long
