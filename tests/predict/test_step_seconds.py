"""Predictions of one step: qualities, calibration, scaling, and what widens the interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.hardware.gpus import gpu_named
from scalewise.predict.operators import Operator, in_pure_half
from scalewise.predict.step_seconds import calibrate, family_of, predict_step, scale_from
from scalewise.published.gpu_steps import operator_lines

RESNET = operator_lines()["torchvision/resnet50"].at(64)
BERT = operator_lines()["training/bert_large"].at(8)


def test_the_specification_interval_holds_a_published_step() -> None:
    """NeuSight: BERT large, batch 8, forward and backward on a V100: 0.841 s."""
    prediction = predict_step(BERT, gpu_named("v100-pcie-32gb"))
    assert prediction.quality == "specification"
    assert prediction.low < 0.841 < prediction.high
    assert prediction.seconds == pytest.approx(0.841, rel=0.25)
    assert prediction.unknown == ()


def test_one_measured_step_of_another_model_moves_the_prediction_and_narrows_it() -> None:
    gpu = gpu_named("v100")
    before = predict_step(RESNET, gpu)
    measured = 1.3 * predict_step(BERT, gpu).seconds
    after = predict_step(RESNET, gpu, calibration=calibrate(BERT, gpu, measured))
    assert after.quality == "calibrated"
    assert 1.2 * before.seconds < after.seconds < 1.3 * before.seconds  # part of the error is that of the other model
    assert after.high / after.low < before.high / before.low


def test_a_measured_step_that_the_host_bounds_gives_the_host_time() -> None:
    gpu, small = gpu_named("h100"), operator_lines()["torchvision/shufflenet_v2_x0_5"].at(2)
    calibration = calibrate(small, gpu, 0.030)
    assert calibration.gpu_factor == 1
    prediction = predict_step(small, gpu, calibration=calibration)
    assert prediction.host_bound
    assert prediction.seconds == pytest.approx(0.030)


def test_a_step_measured_on_another_gpu_corrects_half_of_the_error() -> None:
    source, target = gpu_named("v100"), gpu_named("a100")
    specified = predict_step(BERT, target).seconds
    prediction = scale_from(BERT, source, 1.44 * predict_step(BERT, source).seconds, target)
    assert prediction.quality == "scaled"
    assert prediction.seconds == pytest.approx(1.2 * specified)


def test_an_unmeasured_host_widens_the_interval_of_small_steps() -> None:
    small = operator_lines()["torchvision/shufflenet_v2_x0_5"].at(2)
    eager, graph = (predict_step(small, gpu_named("h100"), execution=execution) for execution in ("eager", "graph"))
    assert eager.high / eager.low > 4
    assert graph.seconds < eager.seconds


def test_unknown_operators_are_named_and_widen_the_interval() -> None:
    strange = Operator("aten.linalg_qr", "unknown", "forward", "fp32", 0.0, 1e9, 1e9)
    plain, widened = (predict_step(operators, gpu_named("a100")) for operators in (BERT, [*BERT, strange]))
    assert widened.unknown == ("aten.linalg_qr",)
    assert widened.seconds > plain.seconds
    assert widened.high / widened.low > plain.high / plain.low


def test_the_family_is_where_the_arithmetic_is() -> None:
    assert family_of(RESNET) == "cnn"
    assert family_of(BERT) == "transformer"
    assert family_of([replace(BERT[0], kind="copy")]) == "other"


def test_half_precision_is_faster_where_tensor_cores_are() -> None:
    half = in_pure_half(BERT, "fp16")
    assert predict_step(half, gpu_named("v100")).seconds < 0.5 * predict_step(BERT, gpu_named("v100")).seconds
    assert (
        predict_step(half, gpu_named("gtx-1080-ti")).seconds
        > 0.5 * predict_step(BERT, gpu_named("gtx-1080-ti")).seconds
    )
