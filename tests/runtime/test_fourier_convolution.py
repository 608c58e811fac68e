"""Convolutions by Fourier transforms: outputs and gradients are those of direct ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.runtime.fourier_convolution import block_of, fast_size, is_supported, use_fourier_convolutions

LAYERS = {
    "1-D, long signal in blocks": (nn.Conv1d(2, 3, 20), (4, 2, 3000)),
    "1-D, one channel, as in the study": (nn.Conv1d(1, 4, 50), (3, 1, 400)),
    "1-D, kernel as long as the signal": (nn.Conv1d(2, 3, 64), (2, 2, 64)),
    "1-D, even kernel with padding 'same'": (nn.Conv1d(2, 3, 20, padding="same"), (2, 2, 77)),
    "1-D, circular padding": (nn.Conv1d(2, 3, 21, padding=10, padding_mode="circular"), (2, 2, 90)),
    "1-D, without bias": (nn.Conv1d(2, 3, 17, bias=False), (2, 2, 90)),
    "2-D": (nn.Conv2d(3, 2, 5), (2, 3, 11, 14)),
    "2-D, kernel and padding not square": (nn.Conv2d(1, 2, (3, 7), padding=(2, 1)), (2, 1, 9, 10)),
}


def outputs_and_gradients(layer: nn.Module, inputs: Tensor) -> list[Tensor]:
    given = inputs.clone().requires_grad_()
    outputs = layer(given)
    direction = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    gradients = torch.autograd.grad(outputs, [given, *layer.parameters()], direction)
    return [outputs.detach(), *gradients]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_outputs_and_gradients_equal_direct_ones(
    layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(shape, dtype=dtype)
    direct = layer.to(dtype)
    expected = outputs_and_gradients(direct, inputs)
    kind = direct.__class__
    try:
        notes = use_fourier_convolutions(direct, "fft", lambda: inputs)
        assert notes == ["1 of 1 convolutions with long kernels use Fourier transforms: "]
        for tensor, reference in zip(outputs_and_gradients(direct, inputs), expected, strict=True):
            scale = float(reference.abs().max())
            torch.testing.assert_close(tensor, reference, rtol=0, atol=tolerance * scale)
    finally:
        direct.__class__ = kind


def test_one_sample_without_batch_dimension() -> None:
    layer = nn.Conv1d(1, 2, 16).double()
    inputs = torch.randn(1, 40, dtype=torch.float64)
    expected = layer(inputs)
    use_fourier_convolutions(layer, "fft", lambda: inputs)
    torch.testing.assert_close(layer(inputs), expected)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(1, 1, 15), nn.Conv1d(1, 1, 20, stride=2), nn.Conv1d(1, 1, 20, dilation=2),
        nn.Conv1d(2, 2, 20, groups=2), nn.Conv2d(1, 1, 3), nn.Conv3d(1, 1, 3), nn.ConvTranspose1d(1, 1, 20),
    ],
)  # fmt: skip
def test_short_kernels_strides_dilation_and_groups_stay_direct(layer: nn.Module) -> None:
    assert not is_supported(layer)
    assert use_fourier_convolutions(layer, "auto", lambda: torch.zeros(1)) == []
    with pytest.raises(UserError, match="--convolutions fft needs a 1-D or 2-D convolution"):
        use_fourier_convolutions(layer, "fft", lambda: torch.zeros(1))


def test_auto_keeps_buffers_gradients_and_weights() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 16), nn.BatchNorm1d(2), nn.Conv1d(2, 2, 16))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    [note] = use_fourier_convolutions(model, "auto", lambda: torch.randn(2, 1, 200))
    assert " of 2 convolutions with long kernels" in note
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_gradients_are_only_those_that_are_needed() -> None:
    layer = nn.Conv1d(1, 2, 16)
    layer.weight.requires_grad_(False)
    use_fourier_convolutions(layer, "fft", lambda: torch.zeros(1, 1, 40))
    layer(torch.randn(2, 1, 40)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias is not None
    assert layer.bias.grad is not None


@pytest.mark.parametrize(("size", "expected"), [(1, 2), (2, 2), (7, 8), (11, 12), (26, 30), (1025, 1080), (2049, 2160)])
def test_fast_sizes_are_even_products_of_2_3_and_5(size: int, expected: int) -> None:
    assert fast_size(size) == expected


@pytest.mark.parametrize(("length", "taps"), [(100, 16), (16000, 200), (16000, 15000), (64, 64)])
def test_blocks_cover_the_signal(length: int, taps: int) -> None:
    count, block = block_of(length, taps)
    outputs = length - taps + 1
    assert count * (block - taps + 1) >= outputs
    assert count == 1 or (count - 1) * (block - taps + 1) < outputs


def test_autocast_gives_half_outputs() -> None:
    layer: Any = nn.Conv1d(1, 2, 16)
    inputs = torch.randn(2, 1, 40)
    use_fourier_convolutions(layer, "fft", lambda: inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(inputs).dtype == torch.bfloat16
