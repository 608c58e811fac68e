"""What convolutions take while they run, as the CPU's allocator sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from scalewise.step.clock import HostClock, Times
from scalewise.step.memory import PeakMemory
from scalewise.workloads.convolution_memory import Copied, copied_by_convolution


def measured(work: Callable[[], object]) -> int:
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(HostClock(Times()), steps=1, anyway=True)
        kept = work()
        peak.stop()
    del kept
    return peak.read() or 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(16, 24, 3, padding=1), (4, 16, 32, 32)),
        (nn.Conv2d(1, 16, 3, padding=1), (4, 1, 64, 64)),
        (nn.Conv2d(3, 16, 3, padding=1), (4, 3, 64, 64)),
        (nn.Conv2d(12, 16, 3, padding=1), (4, 12, 64, 64)),
        (nn.Conv2d(64, 128, 3, padding=1), (1, 64, 8, 8)),
        (nn.Conv2d(64, 48, 3, padding=1), (8, 64, 2, 4)),
        (nn.Conv2d(64, 64, 3, padding=1), (8, 64, 4, 2)),
        (nn.Conv2d(24, 24, 5, padding=2), (2, 24, 4, 8)),
        (nn.Conv2d(16, 1, 1), (4, 16, 32, 32)),
        (nn.Conv2d(16, 1, 1), (16, 16, 32, 32)),
        (nn.ConvTranspose2d(32, 16, 2, stride=2), (4, 32, 16, 16)),
        (nn.ConvTranspose2d(64, 32, 2, stride=2), (1, 64, 8, 8)),
        (nn.Conv1d(1, 50, 200, padding=100), (1, 1, 3000)),
        (nn.Conv1d(1, 50, 200, padding=100), (4, 1, 3000)),
        (nn.Conv1d(50, 30, 100, padding=50), (2, 50, 1500)),
        (nn.Conv1d(50, 30, 100, padding=50), (8, 50, 1500)),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_a_convolution_takes_what_is_counted(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Within the kilobytes that oneDNN spends on lists of its own, or keeps in the processor's cache."""
    inputs = torch.randn(shape, requires_grad=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outputs: Tensor = layer(inputs)
        gradient = torch.ones_like(outputs)
        forward = measured(lambda: layer(inputs))
        backward = measured(lambda: torch.autograd.grad(outputs, [inputs, *layer.parameters()], gradient))
    finally:
        torch.set_num_threads(threads)
    weight, transposed = layer.weight, isinstance(layer, nn.ConvTranspose2d)
    options = (layer.stride, layer.padding, (1,), transposed)
    counted = (
        copied_by_convolution(torch.ops.aten.convolution.default, (inputs, weight, layer.bias, *options), outputs),
        copied_by_convolution(
            torch.ops.aten.convolution_backward.default, (gradient, inputs, weight, None, *options), None
        ),
    )
    made = inputs.nbytes + sum(parameter.nbytes for parameter in layer.parameters())
    assert forward == pytest.approx(
        outputs.nbytes + sum(counted[0]), rel=0.02, abs=500_000 if "Conv1d" in str(layer) else 0
    )
    assert backward == pytest.approx(made + sum(counted[1]), rel=0.02)


def test_nothing_else_is_counted() -> None:
    assert copied_by_convolution(torch.ops.aten.relu.default, (torch.ones(2),), torch.ones(2)) == Copied()
