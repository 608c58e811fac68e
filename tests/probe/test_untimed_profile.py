"""Advice and training agree on whether and where a model can be split into stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import scalewise
from scalewise.advice.explanation import verdict_of
from scalewise.advice.result import Advice
from scalewise.advice.rows import Question, rows_of
from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.gpus import gpu_named
from scalewise.models.model_split import split_by_export
from scalewise.models.workload import Workload
from scalewise.predict.predictor import Predictor
from scalewise.probe.untimed_profile import outline_of, scaled_profile, specified_profile, with_stages
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.registry import strategy_of
from tests.command import ROOT
from tests.tiny import float32


class Wrapped(nn.Module):
    """Three layers inside a user's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.net(inputs)
        return result


class Tied(Wrapped):
    """Model whose first and last layer share weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        self.net[2].weight = self.net[0].weight


class Branching(Wrapped):
    """Model with a branch that depends on values, which torch.export cannot trace."""

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.net(inputs) if inputs.sum() > 1e9 else self.net(2 * inputs)
        return result


def workload_of(model: type[nn.Module]) -> Workload:
    return replace(float32(), name=model.__name__, model=model)


def advise(workload: Workload, *strategies: str) -> Advice:
    return scalewise.advise(
        workload, step_time="0.01@16", cluster="4x-gtx-1080-ti", devices=[1, 2], strategy=strategies
    )


def test_the_sections_equal_those_of_training() -> None:
    workload = workload_of(Wrapped)
    footprint = with_stages(outline_of(workload), workload).footprint
    trained = split_by_export(workload, workload.data(DataRequest()), workload.model(), stages=2, cut="", size=2)
    assert [section["name"] for section in footprint["sections"]] == ["net.0", "net.1", "net.2"]
    assert [section["name"] for section in footprint["sections"]] == [section.name for section in trained.sections]
    assert [section["passed_bytes"] for section in footprint["sections"]] == [
        list(section.passed_bytes) for section in trained.sections
    ]
    assert footprint["exported"] is True


@pytest.mark.parametrize("strategy", ["layers", "pipeline", "pipeline:cut=net.2", "hybrid:stages=2", "tensor"])
def test_a_wrapped_model_of_three_layers_is_advised_on(strategy: str) -> None:
    [_, several] = advise(workload_of(Wrapped), strategy).rows
    assert several.prediction.devices == 2
    assert several.fits


def test_finding_the_stages_does_not_change_the_random_state() -> None:
    workload = workload_of(Wrapped)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with_stages(outline_of(workload), workload)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("model", "reason"), [(Branching, "torch.export stops at"), (Tied, "'net.0' and 'net.2' share weights")]
)
def test_advice_refuses_for_the_reason_that_training_gives(model: type[nn.Module], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        advise(workload_of(model), "pipeline")
    omitted = {omission.strategy: omission.problem for omission in advise(workload_of(model)).omitted}
    assert reason in omitted["pipeline"]
    assert reason in omitted["layers"]


def test_a_published_model_says_that_its_outline_is_all_that_is_known() -> None:
    advice = scalewise.advise("yolov3", step_time="0.1@32", cluster="4x-gtx-1080-ti", devices=[1, 2])
    omitted = {omission.strategy: omission.problem for omission in advice.omitted}
    assert "YOLOv3 does not say where the model can be split into stages" in omitted["pipeline"]
    assert "YOLOv3 does not say which layers can be split between devices" in omitted["tensor"]


def test_a_profile_has_the_sections_of_the_model() -> None:
    measured = scalewise.profile(workload_of(Wrapped), batch=[4], device_kind="cpu")
    assert [section["name"] for section in measured.document.footprint["sections"]] == ["net.0", "net.1", "net.2"]


RESNET = f"{ROOT / 'examples' / 'resnet50.py'}:resnet50"


@pytest.mark.slow
def test_a_faster_gpu_has_a_shorter_step_and_larger_batches_a_longer_one() -> None:
    steps = {}
    for name in ("l4", "a100", "h100"):
        gpu = gpu_named(name)
        document = specified_profile(RESNET, gpu, gpu.name, [8, 64], "tf32", "3x224x224", 1000)
        small, large = document.steps
        assert (small.batch, large.batch) == (8, 64)
        assert small.seconds < large.seconds
        assert large.backward > large.forward > large.update > 0
        low, high = large.uncertainty
        assert 0 < low < 1 < high
        steps[name] = large.seconds
    assert steps["l4"] > 2 * steps["a100"] > 2 * steps["h100"]


def test_a_profile_of_another_gpu_corrects_half_of_the_error_of_the_specification() -> None:
    measured = stevens_profile("conv")
    own, other = gpu_named("gtx-1080-ti"), gpu_named("h100")
    batches = [step.batch for step in measured.steps]
    scaled = scaled_profile(measured, "conv", own, other, "H100")
    assert (scaled.quality, scaled.device, scaled.in_step) == ("scaled", "H100", ())
    predicted = [specified_profile("conv", gpu, gpu.name, batches).steps for gpu in (own, other)]
    # The host limits the smallest step of an H100.
    for before, after, on_own, on_other in [*zip(measured.steps, scaled.steps, *predicted, strict=True)][1:]:
        error = (before.seconds - before.load) / on_own.seconds
        assert after.seconds - after.load == pytest.approx(on_other.seconds * error**0.5, rel=0.01)


def test_a_step_that_the_host_limits_is_as_long_on_a_faster_gpu() -> None:
    measured = stevens_profile("linear")  # about 4 ms at every batch
    scaled = scaled_profile(measured, "linear", gpu_named("gtx-1080-ti"), gpu_named("h100"), "H100")
    for before, after in [*zip(measured.steps, scaled.steps, strict=True)][:5]:
        assert after.seconds == pytest.approx(before.seconds, rel=0.01)
        assert after.uncertainty[1] > 2  # its own host may be another


@pytest.mark.parametrize("workload", ["linear", "conv"])
def test_the_verdicts_of_the_study_follow_from_the_specification_alone(workload: str) -> None:
    cluster, gpu = cluster_of("4x-gtx-1080-ti"), gpu_named("gtx-1080-ti")
    batches = [step.batch for step in stevens_profile(workload).steps]
    document = specified_profile(workload, gpu, cluster.devices[0].name, sorted({*batches, 25}))
    predictor = Predictor(document, cluster)
    question = Question([strategy_of("mirrored")], [1, 2, 4], [100], epoch_known=False)
    verdict = verdict_of(predictor, rows_of(predictor, question)[0])
    assert verdict.add_devices is (workload == "conv")
    assert verdict.bottleneck == ("compute" if workload == "conv" else "network")
    if workload == "conv":  # long one-dimensional kernels; steps of 10 clips take 0.7 of what is proportional
        errors = [step.seconds / (known.seconds - known.load) - 1 for step, known in _pairs(document, workload)]
        assert max(map(abs, errors[1:])) < 0.35


def _pairs(document: ProfileDocument, workload: str) -> list[tuple[StepCost, StepCost]]:
    steps = {step.batch: step for step in document.steps}
    return [(steps[known.batch], known) for known in stevens_profile(workload).steps]


@pytest.mark.slow
def test_seconds_are_near_a_published_figure() -> None:
    """ResNet-50 in fp32 on a V100 processes about 380 images per second (NVIDIA DeepLearningExamples)."""
    gpu = gpu_named("v100")
    [step] = specified_profile(RESNET, gpu, gpu.name, [64], "fp32", "3x224x224", 1000).steps
    assert 64 / step.seconds == pytest.approx(380, rel=0.35)


@pytest.mark.slow
def test_advice_for_a_cluster_that_is_not_here() -> None:
    advice = scalewise.advise(
        RESNET, cluster="4 x rtx-4090", batch=[64], strategy=["mirrored"], input_shape="3x224x224", classes=1000
    ).to_json()
    assert {row["known"] for row in advice["rows"]} == {"specification"}
    for row in advice["rows"]:
        step = row["step_seconds"]
        assert step["low"] < 0.8 * step["predicted"] < step["predicted"] < 0.8 * step["high"]
    assert "no step was measured" in advice["profile"]["source"]


def test_token_ids_and_recurrent_layers_are_counted() -> None:
    gpu = gpu_named("a10g")
    workload = f"{ROOT / 'examples' / 'lstm_language_model.py'}:workload"
    [step] = specified_profile(workload, gpu, gpu.name, [64]).steps
    assert 1e-4 < step.seconds < 0.1
