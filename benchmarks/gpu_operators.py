"""Time single operators on one GPU: convolutions, normalisation, products, attention, pooling and element-wise ones.

    python benchmarks/gpu_operators.py operators.jsonl                       # about two minutes on an H200
    python benchmarks/gpu_operators.py operators.jsonl --device cpu --tiny   # check the script without a GPU

The shapes are those of common CNNs and transformers. Convolutions and normalisation run in NCHW and NHWC, forward and
backward. Calls are captured in a CUDA graph, so that the host's time does not count, and they rotate among several sets
of tensors, so that small ones are not always found in the L2 cache. One JSON line per timing, written at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Layout = Literal["nchw", "nhwc"]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CALLS, BLOCKS = 8, 3
ROTATED_BYTES = 120e6
"""Bytes of all sets of tensors together: more than twice the L2 cache of an H200."""


@dataclass(frozen=True)
class Shape:
    """Shape of an operator: an image, a matrix product (m, n, k), or attention (heads, length, head width)."""

    operator: str
    batch: int
    channels: int = 0
    outputs: int = 0
    kernel: int = 1
    image: int = 0
    """Height and width of the input; the length of one-dimensional ones."""
    stride: int = 1
    groups: int = 1


def convolutions() -> list[Shape]:
    """Convolutions of ResNet, VGG, DenseNet, Inception, MobileNet, ResNeXt and U-Net, and the study's 1-D ones."""
    shapes = []
    for batch in (16, 64):
        shapes += [Shape("conv", batch, 3, 64, 7, 224, 2), Shape("conv", batch, 3, 64, 3, 224)]
        shapes += [Shape("conv", batch, 64 * 2**n, 64 * 2**n, 3, 224 // 2 ** (n + 2)) for n in range(4)]
        shapes += [Shape("conv", batch, 64 * 2**n, 128 * 2**n, 3, 224 // 2 ** (n + 2), 2) for n in range(3)]
        shapes += [Shape("conv", batch, 64 * 2**n, 256 * 2**n, 1, 224 // 2 ** (n + 2)) for n in range(4)]
        shapes += [Shape("conv", batch, 256 * 2**n, 64 * 2**n, 1, 224 // 2 ** (n + 2)) for n in range(4)]
        shapes += [Shape("conv", batch, 256 * 2**n, 512 * 2**n, 1, 224 // 2 ** (n + 2), 2) for n in range(3)]
        shapes += [Shape("conv", batch, *row) for row in ((128, 128, 3, 112), (256, 256, 3, 56), (512, 512, 3, 28))]
        shapes += [Shape("conv", batch, *row) for row in ((128, 32, 3, 56), (128, 32, 3, 28), (128, 32, 3, 14))]
        shapes += [Shape("conv", batch, *row) for row in ((288, 64, 5, 35), (192, 192, 5, 17), (64, 192, 5, 27))]
        shapes += [Shape("conv", batch, 32 * 2**n, 32 * 2**n, 3, 112 // 2**n, 1, 32 * 2**n) for n in range(5)]
        shapes += [Shape("conv", batch, 64 * 2**n, 64 * 2**n, 3, 112 // 2**n, 2, 64 * 2**n) for n in range(3)]
        shapes += [Shape("conv", batch, 128 * 2**n, 128 * 2**n, 3, 56 // 2**n, 1, 32) for n in range(4)]
        shapes += [Shape("conv", batch, *row) for row in ((16, 96, 1, 112), (24, 144, 1, 56), (960, 160, 1, 7))]
    shapes += [Shape("conv", 4, *row) for row in ((64, 64, 3, 256), (128, 64, 3, 256), (512, 1024, 3, 32))]
    shapes += [Shape("conv", 256, *row) for row in ((64, 64, 3, 56), (256, 64, 1, 56), (512, 512, 3, 7))]
    for batch in (10, 100):
        shapes += [
            Shape("conv1d", batch, *row) for row in ((1, 50, 200, 12000), (50, 30, 100, 3000), (30, 10, 50, 1000))
        ]
    return shapes


def normalisations() -> list[Shape]:
    shapes = []
    for batch in (16, 64):
        for channels, image in ((64, 112), (64, 56), (256, 56), (512, 28), (1024, 14), (2048, 7)):
            shapes += [Shape(f"{kind}_norm", batch, channels, 0, 1, image) for kind in ("batch", "group")]
        shapes += [Shape("layer_norm", batch * 128, channels) for channels in (768, 1024, 2048, 4096)]
        shapes += [Shape("max_pool", batch, 64, 0, 3, 112, 2), Shape("average_pool", batch, 256, 0, 2, 56, 2)]
        shapes += [Shape("relu", batch, 256, 0, 1, 56), Shape("add", batch, 256, 0, 1, 56)]
        shapes += [Shape("gelu", batch * 128, 3072), Shape("softmax", batch * 12 * 128, 128)]
        shapes += [Shape("cross_entropy", batch * 128, 50257)]
    return shapes


def products() -> list[Shape]:
    shapes = [Shape("matmul", 1, size, size, image=size) for size in (512, 1024, 2048, 4096, 8192)]
    for tokens in (1024, 8192):
        for inputs, outputs in ((768, 2304), (768, 3072), (3072, 768), (1024, 4096), (4096, 4096), (4096, 14336)):
            shapes.append(Shape("matmul", 1, inputs, outputs, image=tokens))
    shapes += [Shape("matmul", 1, 768, 50257, image=8192), Shape("matmul", 1, 12000, 1000, image=100)]
    shapes += [Shape("attention", batch, 64, 12, image=length) for batch, length in ((8, 128), (64, 128), (8, 1024))]
    return [*shapes, Shape("attention", 4, 128, 32, image=2048)]


def calls_of(
    shape: Shape, dtype: torch.dtype, layout: Layout, device: torch.device
) -> dict[str, Callable[[], list[Tensor]]]:
    """Forward and backward of the operator on one new set of random tensors, by role; each returns its results."""

    def random(*sizes: int) -> Tensor:
        tensor = torch.randn(sizes, device=device).to(dtype)
        return tensor.contiguous(memory_format=torch.channels_last) if layout == "nhwc" and len(sizes) == 4 else tensor

    if shape.operator in ("conv", "conv1d"):
        return _convolution(shape, random)
    image = (shape.image, shape.image) if shape.image else ()
    inputs = random(shape.batch, shape.channels, *image)
    if shape.operator == "matmul":
        left, right = random(shape.image, shape.channels), random(shape.channels, shape.outputs)
        return {"forward": lambda: [left @ right]}
    if shape.operator == "attention":
        query, key, value = (
            random(shape.batch, shape.outputs, shape.image, shape.channels).contiguous().requires_grad_()
            for _ in range(3)
        )
        return _differentiated(
            lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True), [query, key, value]
        )
    weight, bias = (torch.randn(shape.channels, device=device).requires_grad_() for _ in range(2))
    mean, variance = torch.zeros(shape.channels, device=device), torch.ones(shape.channels, device=device)
    targets = torch.zeros(shape.batch, dtype=torch.int64, device=device)
    inputs = inputs.requires_grad_()
    weights = [weight, bias]
    if shape.operator in ("layer_norm", "group_norm"):  # autocast casts their weights
        weights = [tensor.detach().to(dtype).requires_grad_() for tensor in weights]
    functions: dict[str, tuple[Callable[[], Tensor], list[Tensor]]] = {
        "batch_norm": (
            lambda: functional.batch_norm(inputs, mean, variance, weight, bias, training=True),
            [inputs, weight, bias],
        ),
        "group_norm": (lambda: functional.group_norm(inputs, 32, weights[0], weights[1]), [inputs, *weights]),
        "layer_norm": (
            lambda: functional.layer_norm(inputs, (shape.channels,), weights[0], weights[1]),
            [inputs, *weights],
        ),
        "max_pool": (lambda: functional.max_pool2d(inputs, shape.kernel, shape.stride, 1), [inputs]),
        "average_pool": (lambda: functional.avg_pool2d(inputs, shape.kernel, shape.stride), [inputs]),
        "relu": (lambda: functional.relu(inputs), [inputs]),
        "add": (lambda: inputs + inputs.detach(), [inputs]),
        "gelu": (lambda: functional.gelu(inputs), [inputs]),
        "softmax": (lambda: functional.softmax(inputs, -1), [inputs]),
        "cross_entropy": (lambda: functional.cross_entropy(inputs.float(), targets), [inputs]),
    }
    return _differentiated(*functions[shape.operator])


def _differentiated(function: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, Callable[[], list[Tensor]]]:
    output = function()
    gradient = torch.ones_like(output)
    return {
        "forward": lambda: [function()],
        "backward": lambda: list(torch.autograd.grad(output, leaves, gradient, retain_graph=True)),
    }


def _convolution(shape: Shape, random: Callable[..., Tensor]) -> dict[str, Callable[[], list[Tensor]]]:
    dimensions = 1 if shape.operator == "conv1d" else 2
    image, window = [shape.image] * dimensions, [shape.kernel] * dimensions
    inputs = random(shape.batch, shape.channels, *image)
    weight = random(shape.outputs, shape.channels // shape.groups, *window)
    stride, padding, none = [shape.stride] * dimensions, [shape.kernel // 2] * dimensions, [0] * dimensions
    ones = [1] * dimensions

    def forward() -> Tensor:
        output: Tensor = torch.ops.aten.convolution(
            inputs, weight, None, stride, padding, ones, False, none, shape.groups
        )
        return output

    gradient = torch.randn_like(forward())

    def backward(mask: list[bool]) -> list[Tensor]:
        results = torch.ops.aten.convolution_backward(
            gradient, inputs, weight, None, stride, padding, ones, False, none, shape.groups, mask
        )
        return [result for result in results if result is not None]

    return {
        "forward": lambda: [forward()],
        "input gradient": lambda: backward([True, False, False]),
        "weight gradient": lambda: backward([False, True, False]),
    }


def seconds_of(calls: list[Callable[[], Any]], device: torch.device) -> float:
    """Seconds of one call, from a CUDA graph of some calls that rotate among the sets of tensors."""
    rotation = [calls[number % len(calls)] for number in range(max(CALLS, len(calls)))]

    def run() -> None:
        for call in rotation:
            call()

    if device.type != "cuda":
        run()
        started = time.perf_counter()
        run()
        return (time.perf_counter() - started) / len(rotation)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    seconds: list[float] = []
    for _ in range(BLOCKS):
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        seconds.append(before.elapsed_time(after) / 1e3 / len(rotation))
    return median(seconds)


def layouts(shape: Shape) -> tuple[Layout, ...]:
    images = shape.operator not in ("conv1d", "layer_norm", "gelu", "softmax", "cross_entropy", "matmul", "attention")
    return ("nchw", "nhwc") if images else ("nchw",)


def precisions(shape: Shape) -> Iterator[str]:
    yield "bf16"
    yield "fp32"
    if shape.operator in ("conv", "conv1d", "matmul"):
        yield "tf32"


def time_shape(shape: Shape, precision: str, layout: Layout, device: torch.device, write: Callable[..., None]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    dtype = DTYPES[precision]
    first = calls_of(shape, dtype, layout, device)
    size = sum(tensor.numel() * tensor.element_size() for tensor in first["forward"]())
    sets = max(1, min(4, int(ROTATED_BYTES // max(2 * size, 1))))
    every = [first, *(calls_of(shape, dtype, layout, device) for _ in range(sets - 1))]
    for role in first:
        seconds = seconds_of([calls[role] for calls in every], device)
        write(**asdict(shape), precision=precision, layout=layout, role=role, seconds=float(f"{seconds:.4g}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="file of JSON lines; timings are appended")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="every operator once, with small sizes")
    parser.add_argument("--seconds", type=float, default=150.0, help="stop after about this time")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    deadline = time.monotonic() + options.seconds
    shapes = [*products(), *normalisations(), *convolutions()]
    if options.tiny:
        shapes = list({(shape.operator, shape.groups > 1): small(shape) for shape in shapes}.values())
    with options.lines.open("a", encoding="utf-8") as lines:

        def write(**timing: Any) -> None:
            lines.write(json.dumps(timing) + "\n")
            lines.flush()

        for precision in ("bf16", "tf32", "fp32"):
            for shape in shapes:
                for layout in layouts(shape) if precision in precisions(shape) else ():
                    if time.monotonic() > deadline:
                        return
                    try:
                        time_shape(shape, precision, layout, device, write)
                    except RuntimeError as error:
                        write(**asdict(shape), precision=precision, layout=layout, reason=str(error)[:200])
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def small(shape: Shape) -> Shape:
    """The same operator with few samples and a small image, to check the script."""
    image = min(shape.image, 32 if shape.operator != "conv1d" else 600)
    return Shape(
        shape.operator,
        min(shape.batch, 4),
        shape.channels,
        shape.outputs,
        shape.kernel,
        image,
        shape.stride,
        shape.groups,
    )


if __name__ == "__main__":
    main()
