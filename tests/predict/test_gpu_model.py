"""The GPU model stays within the specification and moves the right way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.hardware.gpus import gpu_named, gpus
from scalewise.predict.gpu_model import GpuModel, OperatorTable, gpu_constants, interval
from scalewise.predict.operators import BatchLine, Operator, from_row, merged, to_row, unknown_bytes_share

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def product(m: int, n: int, k: int, precision: str = "fp32") -> Operator:
    size = 4 if precision in ("fp32", "tf32") else 2
    return Operator(
        "aten.mm", "matmul", "forward", precision, 2.0 * m * n * k, size * (m * k + k * n), size * m * n,  # type: ignore[arg-type]
        shape=(1, m, n, k),
    )  # fmt: skip


def moved(bytes_moved: float, kind: str = "elementwise") -> Operator:
    return Operator("aten.add", kind, "forward", "fp32", 0.0, bytes_moved / 2, bytes_moved / 2)  # type: ignore[arg-type]


def convolution(side: int, channels: int, precision: str = "fp16", channels_last: bool = False) -> Operator:
    positions, k = 32 * side * side, channels * 9
    return Operator(
        "aten.convolution", "conv", "forward", precision, 2.0 * positions * channels * k,  # type: ignore[arg-type]
        2.0 * positions * channels, 2.0 * positions * channels,
        shape=(1, positions, channels, k), window=(3, 3), image=(side, side), channels_last=channels_last,
    )  # fmt: skip


def seconds(name: str, *operators: Operator, power_W: float | None = None) -> float:
    model = GpuModel(gpu_named(name), gpu_constants(), power_W)
    return model.step(OperatorTable.of(operators)).gpu_seconds


@pytest.mark.parametrize("gpu", gpus(), ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_products_never_beat_the_peak_nor_bytes_the_bandwidth(gpu: str, precision: str) -> None:
    model = GpuModel(gpu_named(gpu), {**gpu_constants(), **{k: 1.0 for k in gpu_constants() if "correction" in k}})
    boosted = model.peak_TFLOPS(precision) * model.boost
    assert model.sustained_TFLOPS(precision) <= boosted
    assert model.sustained_GBps <= gpu_named(gpu).memory_GBps
    for size in SIZES:
        operator = product(size, size, size, precision)
        assert operator.flops / model.operator_seconds(OperatorTable.of([operator]))[0] / 1e12 <= boosted * 1.001


@pytest.mark.parametrize("name", ["gtx-1080-ti", "t4", "v100", "a100", "rtx-4090", "h100", "mi300x"])
def test_larger_products_take_longer_and_run_more_efficiently(name: str) -> None:
    times = [seconds(name, product(size, size, size)) for size in SIZES]
    assert times == sorted(times)
    rates = [2 * size**3 / time for size, time in zip(SIZES, times, strict=True)]
    assert rates[-1] > rates[2] > rates[0]


def test_more_bytes_take_longer_at_the_rate_of_the_memory() -> None:
    small, large = seconds("a100", moved(1e9)), seconds("a100", moved(2e9))
    assert large / small == pytest.approx(2, rel=0.05)
    assert 1e9 / small < 1.6 * 1555e9


def test_a_faster_gpu_is_faster() -> None:
    step = [product(4096, 4096, 4096), moved(1e8)]
    ranked = [seconds(name, *step) for name in ("k80", "gtx-1080-ti", "rtx-2080-ti", "a100", "h100")]
    assert ranked == sorted(ranked, reverse=True)


def test_a_power_limit_slows_large_products_only() -> None:
    large, small = product(8192, 8192, 8192, "bf16"), moved(1e8)
    assert seconds("h100", large, power_W=350) > 1.3 * seconds("h100", large)
    assert seconds("h100", small, power_W=350) == seconds("h100", small)


def test_16_bit_images_in_nchw_pay_for_the_conversion_unless_compiled() -> None:
    plain, last = convolution(56, 64), convolution(56, 64, channels_last=True)
    assert seconds("v100", plain) > seconds("v100", last)
    model = GpuModel(gpu_named("v100"), gpu_constants())
    compiled = [model.operator_seconds(OperatorTable.of([operator]), "compiled")[0] for operator in (plain, last)]
    assert compiled[0] == compiled[1]


def test_many_small_operators_are_bound_by_the_host_unless_in_a_graph() -> None:
    table = OperatorTable.of([replace(moved(1e4), count=500)])
    model = GpuModel(gpu_named("h100"), gpu_constants())
    eager, graph = model.step(table, "eager"), model.step(table, "graph")
    assert eager.host_bound
    assert not graph.host_bound
    assert graph.seconds < eager.seconds
    assert model.step(table, host_us=100).seconds == pytest.approx(500 * 100e-6)


def test_unknown_operators_are_counted_by_bytes_and_widen_the_interval() -> None:
    assert seconds("a100", moved(1e9, "unknown")) >= 0.9 * seconds("a100", moved(1e9))
    assert unknown_bytes_share([moved(1e9), moved(1e9, "unknown")]) == 0.5
    known, half = (interval("specification", "cnn", "fp32", unknown_share=share) for share in (0.0, 0.5))
    assert half.high > known.high > 1 > known.low > half.low


def test_better_qualities_have_narrower_intervals() -> None:
    for precision in ("fp32", "fp16"):
        widths = [interval(quality, "cnn", precision).high for quality in ("measured", "calibrated", "specification")]
        assert widths == sorted(widths)


def test_operators_survive_a_json_row() -> None:
    operator = convolution(7, 512)
    assert from_row(to_row(operator)) == operator


def test_equal_operators_merge_and_a_line_interpolates() -> None:
    assert [operator.count for operator in merged([moved(8), moved(8), moved(16)])] == [2, 1]
    line = BatchLine(2, 4, (product(2, 8, 8),), (product(4, 8, 8),))
    assert line.at(10) == [product(10, 8, 8)]
