"""Execution options on a device: what they set, restore and refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import EFFECTS, Effect, ExecutionOptions
from scalewise.runtime.execution import (
    LossComputation,
    Stream,
    execution_scope,
    loss_and_gradients,
    place_model,
    refuse_without_compiler,
    states,
)
from tests.tiny_images import images, images32

CPU = torch.device("cpu")


def test_global_settings_are_restored_also_after_an_error() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        with pytest.raises(AssertionError, match="stop"), execution_scope(ExecutionOptions("eager"), CPU):
            assert torch.backends.cudnn.allow_tf32, "stop"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    ("options", "label", "same"),
    [
        (ExecutionOptions("eager"), "eager", True),
        (ExecutionOptions("graph"), "CUDA graph", True),
        (ExecutionOptions("compile", memory_format="channels_last"), "compile, channels_last", True),
        (ExecutionOptions("compile", "reduce-overhead", precision="bf16"), "compile (reduce-overhead), bf16", False),
        (ExecutionOptions("eager", convolutions="fft", precision="tf32"), "fft convolutions, tf32", False),
    ],
)
def test_labels_and_effects(options: ExecutionOptions, label: str, same: bool) -> None:
    assert (options.label, options.same_mathematics) == (label, same)
    assert set(options.effects.values()) <= {Effect.ROUNDING} if same else Effect.RESULT in options.effects.values()


def test_every_value_states_its_effect() -> None:
    for name, values in EFFECTS.items():
        assert getattr(ExecutionOptions(), name) in values


def test_a_model_without_images_refuses_channels_last() -> None:
    with pytest.raises(UserError, match="needs a model with 2-D or 3-D convolutions"):
        place_model(nn.Linear(2, 2), ExecutionOptions(memory_format="channels_last"), CPU, lambda: torch.zeros(1))


def test_channels_last_places_weights_of_2_and_3_dimensions() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv3d(2, 4, 3), nn.Linear(3, 2))
    place_model(model, ExecutionOptions(memory_format="channels_last"), CPU, lambda: torch.zeros(1))
    plane, volume = model[0].weight, model[1].weight
    assert isinstance(plane, torch.Tensor)
    assert isinstance(volume, torch.Tensor)
    assert plane.is_contiguous(memory_format=torch.channels_last)
    assert volume.is_contiguous(memory_format=torch.channels_last_3d)


def test_without_a_compiler_compilation_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler, and this machine has no g\+\+; install one"):
        refuse_without_compiler(CPU)
    monkeypatch.setenv("CXX", "clang++ -O2")
    with pytest.raises(UserError, match=r"this machine has no clang\+\+"):
        refuse_without_compiler(CPU)


@pytest.mark.parametrize("options", [ExecutionOptions("eager", convolutions="fft", memory_format="channels_last")])
def test_loss_and_gradients_of_one_batch(options: ExecutionOptions) -> None:
    workload = images()
    batch = torch.randn(3, *workload.input_shape, dtype=torch.float64), torch.tensor([0, 1, 2])
    torch.manual_seed(1)
    plain = loss_and_gradients(workload, workload.model(), ExecutionOptions("eager"), CPU, batch)
    torch.manual_seed(1)
    other = loss_and_gradients(workload, workload.model(), options, CPU, batch)
    assert other.loss == pytest.approx(plain.loss, rel=1e-12)
    assert other.gradients.keys() == plain.gradients.keys()
    for name, gradient in plain.gradients.items():
        torch.testing.assert_close(other.gradients[name], gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_changes_gradients_beyond_rounding_but_not_their_scale(precision: str) -> None:
    workload = images32()
    batch = torch.randn(3, *workload.input_shape), torch.tensor([0, 1, 2])
    torch.manual_seed(1)
    plain = loss_and_gradients(workload, workload.model(), ExecutionOptions("eager"), CPU, batch)
    torch.manual_seed(1)
    options = ExecutionOptions("eager", precision=precision)  # type: ignore[arg-type]
    half = loss_and_gradients(workload, workload.model(), options, CPU, batch)
    for name, gradient in plain.gradients.items():
        difference = float((half.gradients[name] - gradient).norm() / gradient.norm())
        assert 1e-5 < difference < 0.1


def test_a_model_that_cannot_be_compiled_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    def fails(*_: object, **__: object) -> object:
        def run(*_: object) -> object:
            raise BackendCompilerFailed(fails, RuntimeError("no kernel\nmore"), None)

        return run

    monkeypatch.setattr(torch, "compile", fails)
    model = nn.Linear(2, 2)
    compute = LossComputation(model, nn.functional.cross_entropy, ExecutionOptions("compile"), CPU)
    compute.compile()
    batch = torch.zeros(1, 2), torch.tensor([0])
    with pytest.raises(UserError, match=r"--execution compile is not possible: .*; use --execution eager") as refusal:
        compute.prepare(model, iter([batch]))
    assert "\n" not in str(refusal.value)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def draw() -> list[float]:
    return torch.rand(3).tolist()


def test_the_first_stream_equals_one_device_and_others_differ() -> None:
    expected = draw()
    draws = []
    for home in range(3):
        torch.manual_seed(7)
        Stream(7, home, 3).begin()
        draws.append(draw())
    assert draws[0] == expected
    assert len({tuple(numbers) for numbers in draws}) == 3


def test_a_stream_depends_on_the_seed() -> None:
    Stream(7, 1, 2).begin()
    first = draw()
    Stream(8, 1, 2).begin()
    assert draw() != first


def test_ranks_resume_their_own_states() -> None:
    saved = [states()]
    torch.manual_seed(8)
    saved.append(states())
    expected = draw()
    Stream(7, 1, 2).go_on(saved, 5)
    assert draw() == expected


def test_with_another_number_of_ranks_a_stream_does_not_repeat_its_numbers() -> None:
    Stream(7, 1, 2).begin()
    first = draw()
    draws = []
    for steps in (5, 5, 6):
        Stream(7, 1, 2).go_on([states()], steps)
        draws.append(draw())
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert first not in draws
